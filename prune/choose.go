package prune

import (
	"cmp"
	"math"
	"slices"

	"apr/arch"
	"apr/internal/fault"
)

// Kept says which parts of a teacher stay, in ascending order. Parts within layers are by the teacher's layer; nil:
// all stay.
type Kept struct {
	Layers   []int
	Channels []int
	Neurons  [][]int
	Heads    [][]int
	Experts  [][]int
}

// Choose chooses what stays of a teacher of description c, for which t was checked. im may be nil if t is not Measured.
func Choose(c arch.Config, t Target, im *Importance) (Kept, error) {
	n := len(c.Layers)
	k := Kept{Neurons: make([][]int, n), Heads: make([][]int, n), Experts: make([][]int, n)}
	var err error
	if k.Layers, err = chooseLayers(c, t, im); err != nil {
		return k, err
	}
	if t.Hidden > 0 && t.Hidden < c.Hidden {
		k.Channels = largest(im.channels(c, k.Layers), t.Hidden)
	}
	for _, i := range k.Layers {
		l := c.Layers[i]
		if keep := t.Intermediate * l.FFN.Width / max(width(c), 1); keep > 0 && keep < l.FFN.Width {
			k.Neurons[i] = largest(im.Neurons[i], keep)
		}
		if t.Heads > 0 && !l.Linear() && t.Heads < l.Attn.Heads {
			k.Heads[i] = largestOfGroups(im.Heads[i], l.Attn.KVHeads, t.Heads)
		}
		if e := l.FFN.MoE.Experts; t.Experts > 0 && t.Experts < e {
			k.Experts[i] = largest(im.Experts[i], t.Experts)
		}
	}
	return k, nil
}

// chooseLayers chooses layers. A layer that reads the keys and values of another stays only with that.
func chooseLayers(c arch.Config, t Target, im *Importance) ([]int, error) {
	all := make([]int, len(c.Layers))
	for i := range all {
		all[i] = i
	}
	switch {
	case t.listed():
		list, err := ParseLayers(t.Choice, len(c.Layers))
		if err != nil {
			return nil, err
		}
		return list, checkSources(c, list)
	case t.Layers == 0 || t.Layers == len(all):
		return all, nil
	case t.Choice == Evenly:
		list := evenly(len(all), t.Layers)
		return list, checkSources(c, list)
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(im.Layers[b], im.Layers[a]) })
	list := withSources(c, all, t.Layers)
	if len(list) < t.Layers {
		return nil, bad("--layers", "%d layers cannot stay with the layers whose keys and values they read", t.Layers).WithHint("name them: --layer-choice 0,1,5-9")
	}
	return list, nil
}

// evenly returns k of n layers at equal distances, the first and the last among them; of one the last.
func evenly(n, k int) (list []int) {
	if k == 1 {
		return []int{n - 1}
	}
	for i := range k {
		list = append(list, int(math.Round(float64(i*(n-1))/float64(k-1))))
	}
	return list
}

// source returns the layer whose keys and values layer i reads; i itself: its own, or none.
func source(c arch.Config, i int) int {
	if c.Layers[i].Linear() {
		return i
	}
	return c.Layers[i].Attn.KVFrom
}

// withSources returns the first n of layers in the order given, each with the layer whose keys and values it reads.
func withSources(c arch.Config, order []int, n int) (list []int) {
	for _, i := range order {
		need := []int{i}
		if from := source(c, i); from != i {
			need = append(need, from)
		}
		need = slices.DeleteFunc(need, func(j int) bool { return slices.Contains(list, j) })
		if len(list)+len(need) <= n {
			list = append(list, need...)
		}
	}
	slices.Sort(list)
	return list
}

// checkSources refuses a list of layers without one whose keys and values another reads.
func checkSources(c arch.Config, list []int) error {
	for _, i := range list {
		if from := source(c, i); !slices.Contains(list, from) {
			return bad("--layer-choice", "keeps layer %d, which reads the keys and values of layer %d, and not that one", i, from)
		}
	}
	return nil
}

// largest returns the indices of the n largest values, in ascending order; of equal ones the first.
func largest(values []float64, n int) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	order = order[:n]
	slices.Sort(order)
	return order
}

// largestOfGroups is largest with as many of each of some neighbouring groups of equal size.
func largestOfGroups(values []float64, groups, n int) (list []int) {
	size := len(values) / groups
	for g := range groups {
		for _, i := range largest(values[g*size:(g+1)*size], n/groups) {
			list = append(list, g*size+i)
		}
	}
	return list
}

// Config returns the description of what stays of a teacher of description c.
func (k Kept) Config(c arch.Config) (arch.Config, error) {
	out := c
	out.Layers, out.Ropes, out.Stored = nil, nil, ""
	place, ropes := map[int]int{}, map[int]int{}
	for at, i := range k.Layers {
		place[i] = at
		l := c.Layers[i]
		if !l.Linear() {
			l.Attn.KVFrom = place[l.Attn.KVFrom]
			l.Attn.Rope = kept(ropes, &out.Ropes, c.Ropes, l.Attn.Rope)
			l.Attn.Heads = count(k.Heads[i], l.Attn.Heads)
		}
		l.FFN.Width = count(k.Neurons[i], l.FFN.Width)
		l.FFN.MoE.Experts = count(k.Experts[i], l.FFN.MoE.Experts)
		out.Layers = append(out.Layers, l)
	}
	out.Ropes = append(out.Ropes, unused(c)...)
	if k.Channels != nil {
		out = out.Resized(len(k.Channels))
	}
	if _, err := arch.FromJSON("", string(out.JSON())); err != nil {
		return out, fault.New(fault.Usage, "the model that would be left is none: %w", err).WithID("E-PRUNE-002")
	}
	return out, nil
}

// kept returns the new number of a rotary embedding, which it appends to those that stay if it is not there.
func kept(number map[int]int, list *[]arch.Rope, all []arch.Rope, i int) int {
	if i < 0 {
		return i
	}
	n, ok := number[i]
	if !ok {
		n = len(*list)
		number[i], *list = n, append(*list, all[i])
	}
	return n
}

// unused returns the rotary embeddings that no layer of c has, which its family's configuration gives all the same.
func unused(c arch.Config) (list []arch.Rope) {
	for i, r := range c.Ropes {
		if !slices.ContainsFunc(c.Layers, func(l arch.Layer) bool { return !l.Linear() && l.Attn.Rope == i }) {
			list = append(list, r)
		}
	}
	return list
}

// count returns how many of n stay.
func count(list []int, n int) int {
	if list == nil {
		return n
	}
	return len(list)
}
