package prune

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"apr/arch"
	"apr/internal/fault"
)

// Target says what is left of a teacher. A size of 0 stays.
type Target struct {
	Layers       int    // how many
	Choice       string // which: ByImportance, Evenly, or a list such as "0,1,5-9", which also says how many
	Hidden       int    // channels of the residual stream
	Intermediate int    // neurons of a feed-forward network; layers that are wider keep their proportion
	Heads        int    // query heads of a layer
	Experts      int    // of a layer
}

// The choices of layers beside a list.
const (
	ByImportance = "importance"
	Evenly       = "even"
)

// cutsWithin reports whether anything but layers is cut.
func (t Target) cutsWithin() bool {
	return t.Hidden > 0 || t.Intermediate > 0 || t.Heads > 0 || t.Experts > 0
}

// Measured reports whether the importance of parts decides anything.
func (t Target) Measured() bool {
	return t.cutsWithin() || t.Layers > 0 && (t.Choice == "" || t.Choice == ByImportance)
}

// Empty reports whether all stays.
func (t Target) Empty() bool { return !t.cutsWithin() && t.Layers == 0 && !t.listed() }

// listed reports whether layers are named.
func (t Target) listed() bool {
	return t.Choice != "" && t.Choice != ByImportance && t.Choice != Evenly
}

// bad is a fault of an option.
func bad(option, format string, args ...any) *fault.Error {
	return fault.In(fault.Usage, option, format, args...).WithID("E-PRUNE-001")
}

// Check refuses what a model of description c cannot be cut to.
func (t Target) Check(c arch.Config) error {
	if t.listed() {
		list, err := ParseLayers(t.Choice, len(c.Layers))
		if err != nil {
			return err
		}
		if t.Layers > 0 && t.Layers != len(list) {
			return bad("--layers", "is %d, and --layer-choice names %d", t.Layers, len(list))
		}
	}
	for _, n := range []struct {
		option, what string
		want, have   int
	}{
		{"--layers", "layers", t.Layers, len(c.Layers)}, {"--hidden", "channels", t.Hidden, c.Hidden},
		{"--intermediate", "neurons", t.Intermediate, width(c)}, {"--heads", "query heads", t.Heads, heads(c)}, {"--experts", "experts", t.Experts, experts(c)},
	} {
		switch {
		case n.want < 0:
			return bad(n.option, "is %d", n.want)
		case n.want > 0 && n.have == 0:
			return bad(n.option, "this %s model has no %s", c.Family, absent[n.what])
		case n.want > n.have:
			return bad(n.option, "is %d, and the teacher has %d %s", n.want, n.have, n.what)
		}
	}
	for i, l := range c.Layers {
		if err := t.checkLayer(c, i, l); err != nil {
			return err
		}
	}
	return nil
}

// absent names what a model without such parts lacks.
var absent = map[string]string{"neurons": "dense feed-forward network", "query heads": "attention", "experts": "experts"}

// checkLayer is Check of one layer.
func (t Target) checkLayer(c arch.Config, i int, l arch.Layer) error {
	if n := t.Heads; n > 0 && !l.Linear() {
		switch {
		case l.Attn.Heads != heads(c):
			return bad("--heads", "layer %d has %d query heads and others have %d", i, l.Attn.Heads, heads(c))
		case n%l.Attn.KVHeads != 0:
			return bad("--heads", "%d query heads cannot share the %d key-value heads of layer %d, which stay, evenly", n, l.Attn.KVHeads, i).
				WithHint("a multiple of %d", l.Attn.KVHeads)
		}
	}
	if t.Intermediate > 0 && l.FFN.Width > 0 && t.Intermediate*l.FFN.Width%width(c) != 0 {
		return bad("--intermediate", "%d of %d is not a whole number of the %d neurons of layer %d", t.Intermediate, width(c), l.FFN.Width, i)
	}
	if m := l.FFN.MoE; t.Experts > 0 && m.Experts > 0 {
		switch {
		case m.Experts != experts(c):
			return bad("--experts", "layer %d has %d experts and others have %d", i, m.Experts, experts(c))
		case t.Experts < m.Active:
			return bad("--experts", "is %d, and each token uses %d", t.Experts, m.Active)
		}
	}
	return nil
}

// width returns the neurons of the first dense feed-forward network; 0: there is none.
func width(c arch.Config) int {
	for _, l := range c.Layers {
		if l.FFN.Width > 0 {
			return l.FFN.Width
		}
	}
	return 0
}

// heads returns the query heads of the first layer with attention; 0: there is none.
func heads(c arch.Config) int {
	for _, l := range c.Layers {
		if !l.Linear() {
			return l.Attn.Heads
		}
	}
	return 0
}

// experts returns the experts of the first layer that has some; 0: there is none.
func experts(c arch.Config) int {
	for _, l := range c.Layers {
		if n := l.FFN.MoE.Experts; n > 0 {
			return n
		}
	}
	return 0
}

// ParseLayers reads a list such as "0,1,5-9" of layers of a model that has n, in ascending order.
func ParseLayers(text string, n int) ([]int, error) {
	var list []int
	for word := range strings.SplitSeq(text, ",") {
		lo, hi, err := span(word)
		if err != nil {
			return nil, bad("--layer-choice", "%q is neither importance, even nor a list of layers", text).WithHint("a list such as 0,1,5-9")
		}
		for i := lo; i <= hi; i++ {
			if i >= n {
				return nil, bad("--layer-choice", "names layer %d, and the teacher has layers 0 to %d", i, n-1)
			}
			if len(list) > 0 && i <= list[len(list)-1] {
				return nil, bad("--layer-choice", "names layer %d after layer %d: layers keep their order", i, list[len(list)-1])
			}
			list = append(list, i)
		}
	}
	return list, nil
}

// span reads "5" or "5-9".
func span(word string) (lo, hi int, err error) {
	first, last, both := strings.Cut(strings.TrimSpace(word), "-")
	if lo, err = number(first); err != nil || !both {
		return lo, lo, err
	}
	if hi, err = number(last); err == nil && hi < lo {
		err = fmt.Errorf("%d is before %d", hi, lo)
	}
	return lo, hi, err
}

// number reads digits, and nothing else.
func number(s string) (int, error) {
	if s == "" || slices.ContainsFunc([]byte(s), func(b byte) bool { return b < '0' || b > '9' }) {
		return 0, fmt.Errorf("%q is no number", s)
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err
}
