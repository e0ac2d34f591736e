package main

import (
	"math/rand/v2"
	"slices"
	"time"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/tensor"
)

// The step that is timed: forward and backward of a new model, with a gradient over the logits that does not depend on them.
const (
	speedRows, speedLength = 2, 128
	speedRounds            = 21
)

// likeQwen2 returns a Qwen2 of as many layers, heads and ids as c, whose networks are as wide as makes its parameters nearest to
// those of c.
func likeQwen2(c arch.Config) arch.Config {
	s := c.Sizes()
	for _, l := range c.Layers { // the first may be without heads
		if !l.Linear() {
			s.Heads, s.KVHeads, s.HeadDim = l.Attn.Heads, l.Attn.KVHeads, l.Attn.HeadDim
			break
		}
	}
	s.Theta, s.DType, s.Width = 1e6, tensor.F32, 0
	least := arch.Qwen2(s).Parameters()
	s.Width = max(1, int((c.Parameters()-least)/int64(3*s.Hidden*s.Layers)))
	return arch.Qwen2(s)
}

// speed returns tokens per second of c over those of a Qwen2 of equal parameters: the median of rounds, in
// each of which both take a step.
func speed(open func() (device.Device, error), c arch.Config) (float64, error) {
	a, err := newTimed(open, c)
	if err != nil {
		return 0, err
	}
	defer a.d.Close()
	b, err := newTimed(open, likeQwen2(c))
	if err != nil {
		return 0, err
	}
	defer b.d.Close()
	var ratios []float64
	for i := range 1 + speedRounds {
		ta, err := a.step()
		if err != nil {
			return 0, err
		}
		tb, err := b.step()
		if err != nil {
			return 0, err
		}
		if i > 0 { // the first takes memory
			ratios = append(ratios, tb/ta)
		}
	}
	return median(ratios), nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// timed is a model on a device of its own.
type timed struct {
	d      device.Device
	s      device.Stream
	m      *model.Model
	tokens model.Tokens
	dz     []float32
}

func newTimed(open func() (device.Device, error), c arch.Config) (*timed, error) {
	if err := model.Computed(c); err != nil {
		return nil, err
	}
	d, err := open()
	if err != nil {
		return nil, err
	}
	t := &timed{d: d, s: d.NewStream(), m: model.NewTrainable(d, c)}
	t.m.Init(t.s, 1)
	n, rng := speedRows*speedLength, rand.New(rand.NewPCG(1, 2))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = rng.Int32N(int32(c.Vocab))
	}
	x := d.Alloc("ids", device.Batch, tensor.I32, n, 1)
	t.s.UploadInts(x, ids)
	t.tokens = model.Tokens{IDs: x, Rows: speedRows, SeqLen: speedLength}
	t.dz = make([]float32, n*c.Vocab)
	for i := range t.dz {
		t.dz[i] = float32(rng.NormFloat64()) / float32(n)
	}
	return t, nil
}

// step returns the seconds of a forward and a backward.
func (t *timed) step() (float64, error) {
	begun := time.Now()
	t.m.ResetTraining(t.s)
	v := t.m.Forward(t.s, t.tokens, model.RecomputeNone)
	defer v.ReleaseTo(t.s)
	z := t.s.Temp("z", device.Logits, tensor.F32, v.Hidden.Rows, t.m.Config.Vocab)
	defer t.s.Release(z)
	t.m.Logits(t.s, z, v.Hidden)
	t.s.Upload(z, t.dz)
	backward(t.m, t.s, v, z, t.d.Info().Activations)
	var one [1]float32
	_, param := t.m.Head()
	err := t.s.Download(one[:], param.Grad.RowRange(0, 1).ColRange(0, 1))
	return time.Since(begun).Seconds(), err
}
