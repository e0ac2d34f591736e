package devicetest

import (
	"bytes"
	"fmt"
	"math"

	"apr/device"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
)

// quantizeCases are those of device.Quantizer. A device whose streams are none says so in its Lacks, and the cases ask no more of it.
func quantizeCases() []Case {
	all := []Case{{Name: "quantize/rows of several types", check: func(l *lab) {
		checkQuantize(l, []device.BlockRows{{DType: tensor.Q4_K, Rows: 24}, {DType: tensor.Q6_K, Rows: 5}, {DType: tensor.F32, Rows: 1}, {DType: tensor.BF16, Rows: 2}})
	}}}
	for _, d := range []tensor.DType{tensor.Q2_K, tensor.Q3_K, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.MXFP4} {
		all = append(all, Case{Name: "quantize/" + d.String(), check: func(l *lab) { checkQuantize(l, []device.BlockRows{{DType: d, Rows: 19}}) }})
	}
	return all
}

// blocks is a parameter with blocks, and what they should be.
type blocks struct {
	*trained
	stored []byte
	q      device.Quantizer
}

// checkQuantize takes a parameter through updates: what is stored, and what products read, is at each time what package quant makes of its
// values, byte for byte; the update is that of a gradient that counts once.
func checkQuantize(l *lab, rows []device.BlockRows) {
	q, ok := l.s.(device.Quantizer)
	if !ok {
		for _, f := range l.dev.Info().Lacks {
			if f == device.Quantizes {
				return
			}
		}
		l.errorf("a stream is no Quantizer, and its device does not say so")
		return
	}
	const cols = 512
	n := 0
	for _, r := range rows {
		n += r.Rows
	}
	a := device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}
	b := &blocks{trained: &trained{w: l.random(n, cols, .05), m: ref.New(n, cols), v: ref.New(n, cols)}, q: q}
	round(b.w, tensor.F32)
	b.p = l.dev.Param(device.ParamSpec{Name: "blocks", Rows: n, Cols: cols, Decay: true, Blocks: rows})
	b.stored = make([]byte, b.p.Stored.Cols)
	plain := l.trained("plain", 3, 8, false, 1)
	params := []*device.Param{plain.p, b.p}
	l.s.Upload(b.p.Value, singles(b.w))
	l.s.RefreshWeight(b.p)
	l.compareBlocks("after RefreshWeight", b, quant.Quantize)
	for n, search := range []bool{false, true, false} {
		b.setGrad(l, 1)
		s := device.Scalars{LR: .02, InvN: 1, BiasCorr1: 1 - math.Pow(a.Beta1, float64(n+1)), BiasCorr2: 1 - math.Pow(a.Beta2, float64(n+1))}
		l.s.SetScalars(s)
		l.s.Verdict(params)
		l.s.AdamW(params, a)
		q.Quantize(params, search)
		s.Scale = l.record().Scale
		l.compareStep(b.trained, a, s)
		how := quant.Round
		if search {
			how = quant.Quantize
		}
		l.compareBlocks(fmt.Sprintf("after update %d", n), b, how)
	}
	l.refusedBlocks(b, params, a)
	l.givenBlocks(b)
}

// compareBlocks compares what is stored with what how makes of the values that the device has now, and then what is read.
func (l *lab) compareBlocks(when string, b *blocks, how func([]byte, []float32, tensor.DType) error) {
	values, at, stored := singles(l.get(b.p.Value)), 0, b.stored
	for _, r := range b.p.Blocks {
		size := int(r.Bytes(b.p.Cols))
		part := values[at : at+r.Rows*b.p.Cols]
		if !r.DType.IsQuantized() {
			tensor.Narrow(stored[:size], part, r.DType)
		} else if err := how(stored[:size], part, r.DType); err != nil {
			l.errorf("%s: %v", when, err)
		}
		at, stored = at+len(part), stored[size:]
	}
	l.readsBlocks(when, b)
}

// readsBlocks: the bytes are b.stored, and products and gathers read what they decode to.
func (l *lab) readsBlocks(when string, b *blocks) {
	got := make([]byte, len(b.stored))
	if err := b.q.StoredBytes(got, b.p); err != nil {
		l.errorf("%s: StoredBytes: %v", when, err)
	}
	if !bytes.Equal(got, b.stored) {
		l.errorf("%s: other bytes are stored than the values make", when)
	}
	values, at, stored := make([]float32, b.p.Rows*b.p.Cols), 0, b.stored
	for _, r := range b.p.Blocks {
		size, n := int(r.Bytes(b.p.Cols)), r.Rows*b.p.Cols
		if r.DType.IsQuantized() {
			quant.Dequantize(values[at:at+n], stored[:size], r.DType)
		} else {
			tensor.Widen(values[at:at+n], stored[:size], r.DType)
		}
		at, stored = at+n, stored[size:]
	}
	want := ref.Of(b.p.Rows, b.p.Cols, values)
	rounded := l.get(b.p.Rounded)
	for i := range want.V {
		if !(rounded.V[i] == want.V[i]) {
			l.errorf("%s: value %d is read as %g, its block has %g", when, i, rounded.V[i], want.V[i])
			break
		}
	}
	l.multipliesRead(when, b, want)
}

// multipliesRead: products read these values, in the type of matrices.
func (l *lab) multipliesRead(when string, b *blocks, read ref.Mat) {
	read = read.Clone()
	round(read, l.act)
	x := l.random(2, b.p.Cols, 1)
	xt, y := l.in(l.act, x), l.out(l.act, 2, b.p.Rows)
	l.s.MatMul(y, xt, b.p.Weight, device.Tensor{}, false)
	l.compare(when+": product", "matmul", y, ref.Linear(x, read, ref.Mat{}), b.p.Cols)
}

// refusedBlocks: after a step that is refused the blocks are what they were, whatever the values are by now.
func (l *lab) refusedBlocks(b *blocks, params []*device.Param, a device.AdamW) {
	grad := b.grad.Clone()
	grad.V[3] = math.NaN()
	l.s.Upload(b.p.Grad, singles(grad))
	l.s.SetScalars(device.Scalars{LR: .02, InvN: 1, BiasCorr1: .1, BiasCorr2: .05})
	l.s.Verdict(params)
	l.s.AdamW(params, a)
	l.s.Upload(b.p.Value, singles(l.random(b.p.Rows, b.p.Cols, .05)))
	b.q.Quantize(params, true)
	if l.record().Finite {
		l.errorf("a NaN gradient was judged finite")
	}
	l.readsBlocks("after a refused step", b)
	l.s.Upload(b.p.Grad, singles(b.grad))
}

// givenBlocks: blocks that come from elsewhere are kept as they are, and read.
func (l *lab) givenBlocks(b *blocks) {
	other, at := l.random(b.p.Rows, b.p.Cols, .1), 0
	values, stored := singles(other), b.stored
	for _, r := range b.p.Blocks {
		size, n := int(r.Bytes(b.p.Cols)), r.Rows*b.p.Cols
		if !r.DType.IsQuantized() {
			tensor.Narrow(stored[:size], values[at:at+n], r.DType)
		} else if err := quant.Quantize(stored[:size], values[at:at+n], r.DType); err != nil {
			l.errorf("%v", err)
		}
		at, stored = at+n, stored[size:]
	}
	b.q.SetStored(b.p, b.stored)
	l.readsBlocks("after SetStored", b)
	read := l.random(b.p.Rows, b.p.Cols, .1)
	l.s.Upload(b.p.Rounded, singles(read))
	b.q.RefreshRead(b.p)
	l.multipliesRead("after RefreshRead", b, read)
}

func quantizeRefusals() []Refusal {
	of := func(k *desk) *device.Param {
		return k.dev.Param(device.ParamSpec{Name: "param", Rows: 3, Cols: 64, Blocks: []device.BlockRows{{DType: tensor.Q8_0, Rows: 3}}})
	}
	const gaps = "a tensor of a parameter has gaps between its rows"
	all := refusals(device.OpQuantize, of, func(s device.Stream, p *device.Param) {
		if q, ok := s.(device.Quantizer); ok {
			q.Quantize([]*device.Param{p}, true)
			return
		}
		device.CheckQuantize([]*device.Param{p}) // a stream that has no such operation
	},
		wrong[*device.Param]{"nothing stored", noTensor, func(_ *desk, p **device.Param) { (*p).Stored = device.Tensor{} }},
		wrong[*device.Param]{"value of another shape", wrongShapes, func(k *desk, p **device.Param) { (*p).Value = k.single(4, 3) }},
		wrong[*device.Param]{"what is read has gaps", gaps, func(k *desk, p **device.Param) { (*p).Rounded = k.single(3, 65).ColRange(0, 64) }},
	)
	all = append(all, refusals(device.OpQuantize, of, func(s device.Stream, p *device.Param) {
		if q, ok := s.(device.Quantizer); ok {
			q.SetStored(p, make([]byte, p.Stored.Cols))
			return
		}
		device.CheckStoredBytes(p, p.Stored.Cols)
	},
		wrong[*device.Param]{"no blocks", "a parameter has no blocks", func(_ *desk, p **device.Param) { (*p).Blocks = nil }},
		wrong[*device.Param]{"bytes of another number", noLength, func(k *desk, p **device.Param) { (*p).Stored = k.of(tensor.U8, 1, 7) }},
	)...)
	all = append(all, refusals(device.OpQuantize, of, func(s device.Stream, p *device.Param) {
		if q, ok := s.(device.Quantizer); ok {
			q.RefreshRead(p)
			return
		}
		device.CheckRefreshRead(p)
	}, wrong[*device.Param]{"nothing to read", "a parameter has no blocks", func(_ *desk, p **device.Param) { (*p).Blocks = nil }})...)
	spec := func(rows ...device.BlockRows) func(k *desk) {
		return func(k *desk) { k.dev.Param(device.ParamSpec{Name: "param", Rows: 3, Cols: 64, Blocks: rows}) }
	}
	return append(all,
		Refusal{Name: "Quantize/rows that are no blocks", op: device.OpQuantize, what: "rows are not whole blocks", call: spec(device.BlockRows{DType: tensor.Q4_K, Rows: 3})},
		Refusal{Name: "Quantize/too few rows", op: device.OpQuantize, what: "blocks have another number of rows than the parameter", call: spec(device.BlockRows{DType: tensor.Q8_0, Rows: 2})},
		Refusal{Name: "Quantize/type of ids", op: device.OpQuantize, what: "a type is neither of blocks nor of floats", call: spec(device.BlockRows{DType: tensor.I32, Rows: 3})},
	)
}
