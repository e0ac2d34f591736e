package prune

import (
	"apr/arch"
)

// Cut says what stays of one kind of part.
type Cut struct {
	What  string   `json:"what"`
	Kept  int      `json:"kept"`
	Of    int      `json:"of"`
	Share *float64 `json:"share"` // of the importance of all; within layers, the mean of the layers that stay; null: not measured
}

// Cuts says what stays of a model of description c: of layers, and of every kind of part that it has. im may be nil.
func (k Kept) Cuts(c arch.Config, im *Importance) []Cut {
	if im == nil {
		im = &Importance{}
	}
	cuts := []Cut{{"layers", len(k.Layers), len(c.Layers), share(im.Layers, k.Layers)}}
	channels := Cut{"channels", count(k.Channels, c.Hidden), c.Hidden, nil}
	if im.norms != nil {
		channels.Share = share(im.channels(c, k.Layers), orAll(k.Channels, c.Hidden))
	}
	cuts = append(cuts, channels)
	for _, w := range []struct {
		what   string
		have   int
		kept   [][]int
		scores [][]float64
	}{
		{"neurons", width(c), k.Neurons, im.Neurons}, {"query heads", heads(c), k.Heads, im.Heads}, {"experts", experts(c), k.Experts, im.Experts},
	} {
		if w.have > 0 {
			cuts = append(cuts, k.within(w.what, w.have, w.kept, w.scores))
		}
	}
	return cuts
}

// within is what stays of parts of layers, n in the first layer that has some.
func (k Kept) within(what string, n int, kept [][]int, scores [][]float64) Cut {
	cut := Cut{what, n, n, nil}
	sum, layers := 0.0, 0
	for _, i := range k.Layers {
		if kept[i] != nil && layers == 0 {
			cut.Kept = len(kept[i]) * n / max(len(scores[i]), 1)
		}
		if scores == nil || scores[i] == nil {
			continue
		}
		if s := share(scores[i], orAll(kept[i], len(scores[i]))); s != nil {
			sum += *s
			layers++
		}
	}
	if layers > 0 {
		mean := sum / float64(layers)
		cut.Share = &mean
	}
	return cut
}

// share returns the part of the sum of all scores that is that of the indices; nil: there is none.
func share(scores []float64, indices []int) *float64 {
	all, some := 0.0, 0.0
	for _, x := range scores {
		all += x
	}
	for _, i := range indices {
		if scores != nil {
			some += scores[i]
		}
	}
	if !(all > 0) {
		return nil
	}
	some /= all
	return &some
}
