package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"

	"apr/arch"
	"apr/device"
	"apr/internal/ref"
	"apr/model"
	"apr/tensor"
)

// figures are what a device computes of one golden, beside the golden.
type figures struct {
	Name     string   `json:"name"`
	Family   string   `json:"family"`
	Logits   float64  `json:"logits"`        // largest difference, of the largest
	Cosine   float64  `json:"cosine"`        // least, of a row of logits; of a model with experts beside float64 with the device's choices
	Ties     ref.Ties `json:"ties,omitzero"` // how these differ from float64's own
	Gradient float64  `json:"gradient"`      // largest relative L2 of a tensor
	Where    string   `json:"where"`         // that tensor
	Greedy   bool     `json:"greedy"`        // the ids through a cache are equal
	Refused  string   `json:"refused,omitempty"`
}

// measure computes logits, gradients and a greedy text on a device. A device that refuses the model says so in Refused;
// what is NaN in a device's answer is NaN in the figures.
func measure(d device.Device, g *golden) (m figures) {
	m = figures{Name: g.name, Family: g.config.Family}
	defer func() {
		if p := recover(); p != nil {
			var ours runtime.Error
			if err, is := p.(error); is && errors.As(err, &ours) {
				panic(p) // a mistake of ours, which refuses nothing
			}
			m.Refused = fmt.Sprint(p)
		}
	}()
	if err := model.Computed(g.config); err != nil {
		m.Refused = err.Error()
		return m
	}
	s := d.NewStream()
	frozen, err := model.LoadFrozen(d, g, device.TeacherWeights)
	if err == nil {
		err = g.forward(d, s, frozen, &m)
	}
	if err == nil {
		err = g.generate(d, s, frozen, &m)
	}
	if err == nil {
		err = g.train(d, s, &m)
	}
	if err != nil {
		m.Refused = err.Error()
	}
	return m
}

// tokens uploads the golden's ids.
func (g *golden) tokens(d device.Device, s device.Stream) model.Tokens {
	t := d.Alloc("ids", device.Batch, tensor.I32, len(g.ids), 1)
	s.UploadInts(t, g.ids)
	return model.Tokens{IDs: t, Rows: g.rows, SeqLen: len(g.ids) / g.rows}
}

// logits computes and downloads the logits of hidden states.
func (g *golden) logits(s device.Stream, m *model.Model, hidden device.Tensor) ([]float32, device.Tensor, error) {
	z := s.Temp("z", device.Logits, tensor.F32, hidden.Rows, g.config.Vocab)
	m.Logits(s, z, hidden)
	out := make([]float32, hidden.Rows*g.config.Vocab)
	return out, z, s.Download(out, z)
}

// forward compares the logits of all positions.
func (g *golden) forward(d device.Device, s device.Stream, m *model.Model, out *figures) error {
	x := s.Temp("hidden", device.Activations, d.Info().Activations, len(g.ids), g.config.Hidden)
	defer s.Release(x)
	m.Hidden(s, x, g.tokens(d, s))
	got, z, err := g.logits(s, m, x)
	defer s.Release(z)
	if err != nil {
		return err
	}
	out.Logits, out.Cosine = ofMax(got, g.logitsWant), g.leastCosineOf(got, g.logitsWant)
	return nil
}

// leastCosineOf returns the least cosine of a row of logits.
func (g *golden) leastCosineOf(got []float32, want []float64) (least float64) {
	least = 1
	for lo := 0; lo < len(got); lo += g.config.Vocab {
		least = math.Min(least, cosine(got[lo:lo+g.config.Vocab], want[lo:lo+g.config.Vocab]))
	}
	return least
}

// choices compares the logits of a model with experts with a float64 forward that takes the experts which the device
// chose. Without that, a rounding that decides between two nearly equal router logits would look like a wrong result.
// Models without experts are left alone.
func (g *golden) choices(s device.Stream, m *model.Model, v *model.Saved, got []float32, out *figures) error {
	chosen, err := m.Choices(s, v)
	if err != nil || len(chosen) == 0 {
		return err
	}
	ids := make([]int, len(g.ids))
	for i, id := range g.ids {
		ids[i] = int(id)
	}
	p, ties := g.net().AsChosen(ids, g.rows, chosen)
	out.Cosine, out.Ties = g.leastCosineOf(got, p.Logits.V), ties
	return nil
}

// generate continues the golden's prompt through a cache.
func (g *golden) generate(d device.Device, s device.Stream, m *model.Model, out *figures) error {
	c := m.NewCache(len(g.prompt) + len(g.greedy))
	defer c.Free(d)
	ids := d.Alloc("ids", device.Batch, tensor.I32, len(g.prompt), 1)
	hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, 1, g.config.Hidden)
	choice := m.NewGreedy(g.config.Vocab)
	s.UploadInts(ids, g.prompt)
	m.Extend(s, hidden, c, ids)
	var made []int32
	for range g.greedy {
		id, finite, err := choice.Next(s, hidden)
		if err != nil || !finite {
			return err
		}
		made = append(made, id)
		m.Extend(s, hidden, c, choice.ID())
	}
	out.Greedy = len(made) > 0 && slices.Equal(made, g.greedy)
	return nil
}

// train compares the gradient of the golden's loss, whose own gradient over the logits is computed in float64.
func (g *golden) train(d device.Device, s device.Stream, out *figures) error {
	m := model.NewTrainable(d, g.config)
	if err := m.LoadWeights(s, g); err != nil {
		return err
	}
	m.ResetTraining(s)
	v := m.Forward(s, g.tokens(d, s), model.RecomputeNone)
	defer v.ReleaseTo(s)
	got, z, err := g.logits(s, m, v.Hidden)
	defer s.Release(z)
	if err != nil {
		return err
	}
	if err := g.choices(s, m, v, got, out); err != nil {
		return err
	}
	s.Upload(z, g.lossGradient(got))
	backward(m, s, v, z, d.Info().Activations)
	params := map[string]ref.Mat{}
	for _, p := range m.Parts() {
		x := p.Of(p.Param.Grad)
		host := make([]float32, x.Rows*x.Cols)
		if err := s.Download(host, x); err != nil {
			return err
		}
		params[p.Name] = ref.Of(1, len(host), host)
	}
	out.Gradient, out.Where = g.gradientsApart(params)
	return nil
}

// backward goes from the gradient over the logits to every parameter.
func backward(m *model.Model, s device.Stream, v *model.Saved, dz device.Tensor, act tensor.DType) {
	head, param := m.Head()
	dx := s.Temp("dx", device.Scratch, act, v.Hidden.Rows, v.Hidden.Cols)
	defer s.Release(dx)
	s.MatMulInputGrad(dx, dz, head, false)
	s.MatMulWeightGrad(param.Grad, device.Tensor{}, dz, v.Hidden)
	m.Backward(s, v, dx)
}

// gradientsApart returns the largest relative L2 distance of a tensor of the file, and the tensor.
func (g *golden) gradientsApart(params map[string]ref.Mat) (worst float64, where string) {
	files := map[string][]float64{}
	for _, s := range arch.Slots(g.config) {
		if s.Fixed {
			continue
		}
		p := s.Stacked()
		if files[p.Name] == nil {
			files[p.Name] = make([]float64, elements(p.Shape))
		}
		arch.Scatter(s, p, params[s.Name].V, [][]float64{files[p.Name]})
	}
	for _, name := range sorted(files) {
		d := math.NaN()
		if want, ok := g.want["grad."+name]; ok {
			d = apart("grad."+name, files[name], want)
		}
		if !(d <= worst) {
			worst, where = math.Max(worst, d), name
		}
	}
	return worst, where
}
