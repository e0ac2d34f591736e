package distill

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/tensor"
)

// Quantize says in which types a student is trained and written (quantisation-aware distillation). Each step computes
// with the values that blocks of its weights decode to, and updates the weights themselves; see device.Quantizer. What
// is evaluated, and what is written, is the blocks.
type Quantize struct {
	Scheme string // that Types follows, by its name
	// SearchEvery is the number of applied steps after which the scales of all blocks are searched for again; between,
	// weights are rounded under the scales that are there. 0: they are searched for once, before the first step.
	SearchEvery int
	// Types returns the type of each matrix by slot, and a line for each kind of exception.
	Types func(arch.Config) (map[string]tensor.DType, []string, error)
}

// searchEvery is Quantize.SearchEvery, 0 without it.
func (c Config) searchEvery() int {
	if c.Quantize == nil {
		return 0
	}
	return c.Quantize.SearchEvery
}

// quantize finds the types of a student's matrices.
func (in *inputs) quantize(c Config, obs Observer) (err error) {
	if c.Quantize == nil {
		return nil
	}
	if in.types, in.fallbacks, err = c.Quantize.Types(in.studentConfig); err != nil {
		return err
	}
	for _, line := range in.fallbacks {
		obs.Message("%s: %s", c.Quantize.Scheme, line)
	}
	return nil
}

// trainable makes the run's student, without weights.
func (in *inputs) trainable(dev device.Device) *model.Model {
	return model.NewTrainableAs(dev, in.studentConfig, in.types)
}

// recordQuantize writes down what the student is trained in.
func (r *Run) recordQuantize() error {
	q := r.Quantize
	if q == nil {
		return nil
	}
	count := map[string]int{}
	for _, d := range r.in.types {
		count[d.String()]++
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d %s", count[name], name))
	}
	r.obs.Message("the student is trained in blocks, %s: %s", q.Scheme, strings.Join(parts, ", "))
	detail := map[string]any{"scheme": q.Scheme, "search_every": q.SearchEvery, "types": count, "fallbacks": r.in.fallbacks}
	return r.dir.Event("decision", "quantisation-aware", detail,
		"every step, and every score of the student, is computed with the values that its blocks decode to; the gradient of these moves the weights")
}

// quantize makes the blocks of the weights that AdamW has moved.
func (t *Trainer) quantize() {
	if !t.Student.Quantized() {
		return
	}
	t.stream.Phase(device.PhaseQuantize)
	next := t.Optimizer.Applied + 1 // if the step is refused, nothing happens, and the next one has the same number
	t.stream.(device.Quantizer).Quantize(t.Student.Params(), t.SearchEvery > 0 && next%t.SearchEvery == 0)
}
