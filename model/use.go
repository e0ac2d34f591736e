package model

import (
	"apr/device"
	"apr/tensor"
)

// Mixtures returns the layers that have experts, and the most experts that one has.
func (m *Model) Mixtures() (layers []int, most int) {
	for i := range m.layers {
		if b := &m.layers[i]; b.hasExperts() {
			layers, most = append(layers, i), max(most, b.FFN.MoE.Experts)
		}
	}
	return layers, most
}

// HiddenCounting is Hidden, which adds to row i of counts, float32, the slots of each expert of the i-th layer with experts: how many
// positions it served. counts may be zero.
func (m *Model) HiddenCounting(s device.Stream, dst device.Tensor, t Tokens, counts device.Tensor) {
	m.hidden(s, dst, t, counts, Kept{})
}

// HiddenKeeping is Hidden, which also writes what is in keep. It changes no bit of dst.
func (m *Model) HiddenKeeping(s device.Stream, dst device.Tensor, t Tokens, keep Kept) {
	m.hidden(s, dst, t, device.Tensor{}, keep)
}

func (m *Model) hidden(s device.Stream, dst device.Tensor, t Tokens, counts device.Tensor, keep Kept) {
	w := newWorkspace(s, t.n())
	p := &pass{m: m, s: s, t: t, act: dst.DType, counts: counts, adds: m.dev.Info().Adds, maps: keep.Maps}
	x := p.inference(w)
	v := p.embed(x)
	p.perLayer(w, &perLayerActs{}, v.x)
	if out, ok := keep.Outputs[-1]; ok {
		p.output(out, v)
	}
	for i := range m.layers {
		v = p.layer(&m.layers[i], p.reused(&m.layers[i]), v, false)
		if out, ok := keep.Outputs[i]; ok {
			p.output(out, v)
		}
	}
	p.last(dst, device.Tensor{}, x, v)
	w.release()
}

// output writes the residual stream that v stands for, whose addition stays pending.
func (p *pass) output(dst device.Tensor, v stream) {
	var none device.Tensor
	if v.delta.IsZero() {
		p.s.Copy(dst, v.x)
	} else {
		p.s.RMSNorm(none, none, dst, v.x, v.delta, none, p.m.Config.Eps)
	}
	if v.scaled {
		p.s.Scale(dst, dst, v.scale)
	}
}

// countsOf returns the row of counts of a layer: its own, or the one that all layers share.
func (p *pass) countsOf(b *layer) device.Tensor {
	row := 0
	if p.counts.Rows > 1 {
		row = b.mixture
	}
	return p.counts.RowRange(row, row+1).ColRange(0, b.FFN.MoE.Experts)
}

// Choices downloads the experts that a kept forward pass chose: by layer, the Active experts of each position, position
// after position. Layers without experts have no entry. Errors are those of Download.
func (m *Model) Choices(s device.Stream, v *Saved) (map[int][]int, error) {
	all := map[int][]int{}
	for i := range m.layers {
		if !m.layers[i].hasExperts() {
			continue
		}
		ids, experts := v.layers[i].moe.chosen, m.layers[i].FFN.MoE.Experts
		numbers, out := s.Temp("numbers", device.Scratch, tensor.F32, experts, 1), s.Temp("chosen", device.Scratch, tensor.F32, ids.Rows*ids.Cols, 1)
		host := make([]float32, max(experts, out.Rows))
		for e := range experts {
			host[e] = float32(e)
		}
		s.Upload(numbers, host[:experts])
		s.Gather(out, numbers, ids)
		err := s.Download(host[:out.Rows], out)
		s.Release(numbers, out)
		if err != nil {
			return nil, err
		}
		for _, e := range host[:out.Rows] {
			all[i] = append(all[i], int(e))
		}
	}
	return all, nil
}
