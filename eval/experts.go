package eval

import (
	"fmt"

	"apr/device"
	"apr/model"
	"apr/tensor"
)

// countExperts takes room for the slots of the experts of all models that have some.
func (c *comparison) countExperts() {
	c.used = map[*model.Model]device.Tensor{}
	for _, sub := range c.subjects {
		if sub.Model == nil {
			continue
		}
		if layers, most := sub.Model.Mixtures(); len(layers) > 0 && c.used[sub.Model].IsZero() {
			t := c.s.Temp("experts.used", device.Scratch, tensor.F32, len(layers), most)
			c.s.Zero(t)
			c.used[sub.Model] = t
		}
	}
}

// release gives it back.
func (c *comparison) release() {
	for _, t := range c.used {
		c.s.Release(t)
	}
}

// readExperts puts the counts into the scores.
func (c *comparison) readExperts() error {
	for i, sub := range c.subjects {
		t, ok := c.used[sub.Model]
		if !ok {
			continue
		}
		counts := make([]float32, t.Rows*t.Cols)
		if err := c.s.Download(counts, t); err != nil {
			return fmt.Errorf("evaluating %s: %w", sub.Name, err)
		}
		layers, _ := sub.Model.Mixtures()
		for row, layer := range layers {
			use := ExpertUse{Layer: layer, Slots: make([]int64, sub.Model.Config.Layers[layer].FFN.MoE.Experts)}
			for e := range use.Slots {
				use.Slots[e] = int64(counts[row*t.Cols+e])
			}
			c.scores[i].Experts = append(c.scores[i].Experts, use)
		}
	}
	return nil
}
