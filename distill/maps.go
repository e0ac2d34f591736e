package distill

import (
	"math"
	"slices"
	"strconv"

	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
)

// Maps is the term of the loss that compares attention maps: it adds
//
//	Weight · mean over the step's targets and over Pairs of KL(P̄ₜ‖P̄ₛ)
//
// with P̄ the mean over the query heads of a layer of the probabilities that a position gives the positions that it
// sees, and the sink, if there is one. A pair that is not compared yet counts as zero in the mean, so that no pair's
// weight changes in a run. It has no parameters.
type Maps struct {
	Weight float64
	Pairs  []Pair
	Steps  int // as in Hidden

	active int
}

// each is the weight of one pair.
func (a *Maps) each() float64 { return a.Weight / float64(len(a.Pairs)) }

// begin says which pairs step k compares: see Hidden.begin.
func (a *Maps) begin(k int) { a.active = broughtIn(len(a.Pairs), a.Steps, k) }

// Compared returns the pairs that step k compares, and the weight of each.
func (a *Maps) Compared(k int) ([]Pair, float64) {
	if a == nil {
		return nil, 0
	}
	a.begin(k)
	return a.Pairs[:a.active], a.each()
}

// broughtIn returns how many of n pairs step k compares: over a run of steps > 0, the i-th, from 0, comes in at step
// ⌊i·steps/n⌋.
func broughtIn(n, steps, k int) int {
	active := n
	for steps > 0 && active > 1 && k < (active-1)*steps/n {
		active--
	}
	return active
}

// layersOf returns the teacher's layers of pairs, each once.
func layersOf(pairs []Pair) []int {
	var all []int
	for _, p := range pairs {
		if !slices.Contains(all, p.Teacher) {
			all = append(all, p.Teacher)
		}
	}
	return all
}

// guides returns what Backward does at a layer's attention for the micro-batch m: the gradients of the layer's pairs.
func (a *Maps) guides(s device.Stream, t teacher.Maps, m model.MicroBatch) func(layer int, own device.AttnMap, dq, dk device.Tensor) {
	return func(layer int, own device.AttnMap, dq, dk device.Tensor) {
		for _, p := range a.Pairs[:a.active] {
			if p.Student == layer {
				s.CompareMaps(dq, dk, own, t.Map(p.Teacher, m.Tokens), m.Keep, a.each())
			}
		}
	}
}

// ask lets the teacher keep what the maps that are compared are computed from. Only one model whose layers are computed
// has them.
func (a *Maps) ask(t teacher.Teacher) error {
	r, ok := t.(*teacher.Resident)
	if !ok {
		return fault.New(fault.Unavailable, "--attention-weight needs the attention maps of one teacher that is computed").WithID("E-GUIDE-005")
	}
	r.Attended = layersOf(a.Pairs)
	return nil
}

// makeMaps makes the term for a student and a teacher, which then keeps what is compared; nil if nothing is. steps is
// the length of the run.
func (g Guide) makeMaps(student, big arch.Config, t teacher.Teacher, steps int) (*Maps, error) {
	if g.Attention == 0 || t == nil {
		return nil, nil
	}
	pairs, err := g.pairs(len(student.Layers), len(big.Layers))
	if err != nil {
		return nil, err
	}
	a := &Maps{Weight: g.Attention, Pairs: pairs, active: len(pairs)}
	if g.bottomUp() {
		a.Steps = steps
	}
	return a, a.ask(t)
}

// fewMaps is makeMaps for a probe, whose teacher has only its first layers: each pair takes the last of those that it
// can be compared with, and is left out if there is none.
func (g Guide) fewMaps(student, whole, there arch.Config, t teacher.Teacher, seqLen int) (*Maps, error) {
	if g.Attention == 0 {
		return nil, nil
	}
	pairs, err := g.pairs(len(student.Layers), len(whole.Layers))
	if err != nil {
		return nil, err
	}
	a := &Maps{Weight: g.Attention}
	for _, p := range pairs {
		p.Teacher = min(p.Teacher, len(there.Layers)-1)
		for p.Teacher >= 0 && p.mapped(student, there, seqLen) != nil {
			p.Teacher--
		}
		if p.Teacher >= 0 {
			a.Pairs = append(a.Pairs, p)
		}
	}
	if a.active = len(a.Pairs); a.active == 0 {
		return nil, nil
	}
	return a, a.ask(t)
}

// checkMaps refuses pairs of layers whose attention maps cannot be compared over rows of seqLen positions.
func (g Guide) checkMaps(student, big arch.Config, seqLen int) error {
	if g.Attention == 0 {
		return nil
	}
	pairs, err := g.pairs(len(student.Layers), len(big.Layers))
	if err != nil {
		return err
	}
	for _, p := range pairs {
		if err := p.mapped(student, big, seqLen); err != nil {
			return err
		}
	}
	return nil
}

// mapped refuses a pair that has no two attention maps, or in whose student an outcome has no probability that the
// teacher gives some: the divergence would be infinite.
func (p Pair) mapped(student, big arch.Config, seqLen int) error {
	s, t := student.Layers[p.Student], big.Layers[p.Teacher]
	refuse := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Usage, "--attention-weight: pair %d:%d: "+format, append([]any{p.Student, p.Teacher}, args...)...).
			WithHint("--layer-map S:T,… names other pairs")
	}
	if s.Linear() {
		return refuse("the student's layer %d is a Gated DeltaNet, which has no attention map", p.Student).WithID("E-GUIDE-006")
	}
	if t.Linear() {
		return refuse("the teacher's layer %d is a Gated DeltaNet, which has no attention map", p.Teacher).WithID("E-GUIDE-006")
	}
	own, wide := device.Attn{QLen: seqLen, Window: s.Attn.Window}, device.Attn{QLen: seqLen, Window: t.Attn.Window}
	if !own.Sees(wide) {
		seen := "all positions"
		if 0 < wide.Window && wide.Window < seqLen {
			seen = strconv.Itoa(wide.Window)
		}
		return refuse("the student's window of %d positions is narrower than the teacher's, which sees %s", own.Window, seen).WithID("E-GUIDE-007")
	}
	if t.Attn.Sinks && !s.Attn.Sinks {
		return refuse("the teacher's attention has sinks and the student's has none").WithID("E-GUIDE-008")
	}
	return nil
}

// validateMaps refuses what compares nothing.
func (c Config) validateMaps() error {
	switch w := c.Guide.Attention; {
	case w == 0:
		return nil
	case !(w > 0) || math.IsInf(w, 1):
		return fault.New(fault.Usage, "--attention-weight %g is not positive", w)
	case c.Loss.Alpha == 0:
		return fault.New(fault.Usage, "--attention-weight with --alpha 0, which calls no teacher")
	}
	return nil
}
