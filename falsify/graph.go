package falsify

import (
	"cmp"
	"slices"
	"strings"

	"apr/internal/fault"
)

// Edge says that one contract rests on another.
type Edge struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Graph is what the contracts of a folder rest on.
type Graph struct {
	Contracts []string   `json:"contracts"` // each after those it rests on, where that is possible
	Edges     []Edge     `json:"edges"`
	Missing   []Edge     `json:"missing"` // to contracts that are not there
	Cycles    [][]string `json:"cycles"`
}

// NewGraph makes the graph of metadata.depends_on.
func NewGraph(contracts []*Contract) *Graph {
	g := &Graph{Contracts: []string{}, Edges: []Edge{}, Missing: []Edge{}, Cycles: [][]string{}}
	below := map[string][]string{}
	var ids []string
	for _, c := range contracts {
		ids = append(ids, c.ID)
		below[c.ID] = slices.Compact(slices.Sorted(slices.Values(c.Metadata.DependsOn)))
	}
	slices.Sort(ids)
	for _, from := range ids {
		for _, to := range below[from] {
			edge := Edge{from, to}
			if _, ok := below[to]; !ok {
				g.Missing = append(g.Missing, edge)
			} else {
				g.Edges = append(g.Edges, edge)
			}
		}
	}
	g.order(ids, below)
	return g
}

// order sorts the contracts by a depth-first walk and keeps each cycle that it meets. The walk has a stack of its own:
// how long a chain is, is up to the files.
func (g *Graph) order(ids []string, below map[string][]string) {
	const onWay, done = 1, 2
	type visit struct {
		id   string
		next int
	}
	state := map[string]int{}
	for _, start := range ids {
		if state[start] != 0 {
			continue
		}
		way := []visit{{id: start}}
		state[start] = onWay
		for len(way) > 0 {
			top := &way[len(way)-1]
			if top.next == len(below[top.id]) {
				state[top.id] = done
				g.Contracts = append(g.Contracts, top.id)
				way = way[:len(way)-1]
				continue
			}
			to := below[top.id][top.next]
			top.next++
			_, known := below[to]
			switch {
			case !known || state[to] == done:
			case state[to] == onWay:
				at := slices.IndexFunc(way, func(v visit) bool { return v.id == to })
				var cycle []string
				for _, v := range way[at:] {
					cycle = append(cycle, v.id)
				}
				g.Cycles = append(g.Cycles, cycle)
			default:
				state[to] = onWay
				way = append(way, visit{id: to})
			}
		}
	}
	slices.SortFunc(g.Cycles, func(a, b []string) int { return cmp.Compare(strings.Join(a, " "), strings.Join(b, " ")) })
}

// Err is a fault of kind Vacuous when a contract rests on one that is missing, or on itself.
func (g *Graph) Err() error {
	switch {
	case len(g.Missing) > 0:
		e := g.Missing[0]
		return fault.New(fault.Vacuous, "%s depends on %s, which is not there", plain(e.From), plain(e.To)).WithID("E-CONTRACT-004")
	case len(g.Cycles) > 0:
		return fault.New(fault.Vacuous, "contracts depend on each other: %s", plainText(strings.Join(g.Cycles[0], " -> "))).WithID("E-CONTRACT-005")
	}
	return nil
}
