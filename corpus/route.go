package corpus

import (
	"fmt"
	"slices"

	"apr/internal/fault"
)

// Route returns t with its documents in order of the way that each goes, route's number for its source, those of one way in data
// order. Rows and windows are then cut from each way's text alone: a teacher that is chosen by source reads whole rows, and rows
// of one source cost one teacher. t has Sources. route returns false for a source that it does not know: a fault of kind Invalid, which names it.
func (t *Tokens) Route(route func(source string) (int, bool)) (*Tokens, error) {
	type doc struct {
		at, way int
	}
	order := make([]doc, len(t.Docs))
	for i := range t.Docs {
		way, ok := route(t.Sources[i])
		if !ok {
			return nil, unrouted(i, t.Sources[i])
		}
		order[i] = doc{i, way}
	}
	slices.SortStableFunc(order, func(a, b doc) int { return a.way - b.way })
	out := &Tokens{EOS: t.EOS, IDs: make([]int32, 0, len(t.IDs)), Docs: make([]Doc, 0, len(t.Docs)), Routes: make([]int, 0, len(t.Docs))}
	for _, o := range order {
		d, start := t.Docs[o.at], int64(0)
		if o.at > 0 {
			start = t.Docs[o.at-1].End
		}
		out.IDs = append(out.IDs, t.IDs[start:d.End]...)
		if t.Mask != nil {
			out.Mask = append(out.Mask, t.Mask[start:d.End]...)
		}
		d.End = int64(len(out.IDs))
		out.Docs, out.Routes = append(out.Docs, d), append(out.Routes, o.way)
	}
	return out, nil
}

func unrouted(i int, source string) error {
	what := fmt.Sprintf("source %q", source)
	if source == "" {
		what = fmt.Sprintf("no field %q", sourceField)
	}
	return fault.New(fault.Invalid, "document %d has %s, and no route", i+1, what).WithID("E-CORPUS-003")
}

// routePart is where the text of a route ends.
type routePart struct {
	route int
	end   int64
}

// routeParts returns the parts of t that go one way; all of t if everything does.
func (t *Tokens) routeParts() (all []routePart) {
	if t.Routes == nil {
		return []routePart{{0, int64(len(t.IDs))}}
	}
	for i, d := range t.Docs {
		if n := len(all); n > 0 && all[n-1].route == t.Routes[i] {
			all[n-1].end = d.End
			continue
		}
		all = append(all, routePart{t.Routes[i], d.End})
	}
	return all
}

// RouteTokens returns how many ids go each of n ways.
func (t *Tokens) RouteTokens(n int) []int64 {
	all, from := make([]int64, n), int64(0)
	for _, p := range t.routeParts() {
		all[p.route] += p.end - from
		from = p.end
	}
	return all
}
