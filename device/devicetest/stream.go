package devicetest

import (
	"context"
	"math"
	"slices"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

func streamCases() []Case {
	return []Case{
		{Name: "stream/uploads do not keep the slice", check: checkUploadCopies},
		{Name: "stream/temps", check: checkTemps},
		{Name: "stream/pulse", check: checkPulse},
		{Name: "stream/id outside the embedding", check: func(l *lab) {
			y, w := l.out(l.act, 1, 4), l.frozen(l.random(3, 4, 1))
			checkError(l, func() { l.s.Embed(y, w, l.ids([]int{3})) })
		}},
		{Name: "stream/target outside the vocabulary", check: func(l *lab) {
			z := l.in(tensor.F32, l.random(2, 5, 1))
			l.start()
			checkError(l, func() {
				l.s.Loss(device.Tensor{}, z, device.Tensor{}, l.ids([]int{1, 5}), device.LossSpec{Temperature: 1})
			})
		}},
		{Name: "stream/negative target", check: func(l *lab) {
			z := l.in(tensor.F32, l.random(2, 5, 1))
			l.start()
			checkError(l, func() {
				l.s.Loss(device.Tensor{}, z, device.Tensor{}, l.ids([]int{-1, 4}), device.LossSpec{Temperature: 1})
			})
		}},
	}
}

func checkUploadCopies(l *lab) {
	src := []float32{1, 2, 3}
	t := l.s.Temp("t", device.Batch, l.act, 1, 3)
	l.s.Upload(t, src)
	src[0], src[1], src[2] = 7, 8, 9
	l.compare("uploaded", "move", t, ref.Of(1, 3, []float64{1, 2, 3}), 0)
	l.s.Release(t)
}

// checkPulse: what a device has ended changes with each product, and stands still while it has nothing to do.
func checkPulse(l *lab) {
	p, ok := l.dev.(device.Pulse)
	if !ok {
		return
	}
	x, w, y := l.in(l.act, l.random(3, 8, 1)), l.frozen(l.random(5, 8, 1)), l.out(l.act, 3, 5)
	for range 3 {
		before := p.Ended()
		l.s.MatMul(y, x, w, device.Tensor{}, false)
		_, err := l.s.Wait(context.Background())
		l.note(err)
		after := p.Ended()
		if after == before {
			l.errorf("a product ended, and Ended is still %d", after)
		}
		if now := p.Ended(); now != after {
			l.errorf("Ended went from %d to %d with nothing to do", after, now)
		}
	}
}

// checkTemps: live temps do not overlap, the same sequence gets the same places, and memory does not grow.
func checkTemps(l *lab) {
	type place struct {
		buf device.Buffer
		off int
	}
	sequence := func() (places []place) {
		var live []device.Tensor
		take := func(rows, cols int) {
			t := l.s.Temp("temp", device.Scratch, l.act, rows, cols)
			fill := make([]float32, rows*cols)
			for i := range fill {
				fill[i] = float32(len(places))
			}
			l.s.Upload(t, fill)
			live, places = append(live, t), append(places, place{t.Buf, t.Off})
		}
		give := func(i int) {
			l.s.Release(live[i])
			live = append(live[:i:i], live[i+1:]...)
		}
		take(3, 33)
		take(17, 65)
		take(1, 1)
		give(0)
		take(2, 32)
		give(1)
		take(17, 64)
		for i, want := range []float32{1, 3, 4} {
			m := l.get(live[i])
			for _, v := range m.V {
				if float32(v) != want {
					l.errorf("temp %d holds %g, want %g: temps overlap", i, v, want)
					break
				}
			}
		}
		l.s.Release(live...)
		l.s.Release(device.Tensor{}) // nothing
		return places
	}
	sequence()
	_, before := l.dev.Memory()
	first := sequence()
	for range 3 {
		for i, p := range sequence() {
			if p != first[i] {
				l.errorf("temp %d is at another place than in the same sequence before", i)
			}
		}
	}
	now, after := l.dev.Memory()
	if after[device.Scratch] != before[device.Scratch] {
		l.errorf("the same temps again raised the peak from %d to %d bytes", before[device.Scratch], after[device.Scratch])
	}
	if now[device.Scratch] != 0 && now[device.Scratch] > before[device.Scratch] {
		l.errorf("%d bytes of scratch held after release", now[device.Scratch])
	}
}

// checkError: an error stays until Wait, later operations do nothing, and Wait clears it.
func checkError(l *lab, wrong func()) {
	t := l.s.Temp("t", device.Batch, l.act, 1, 2)
	l.s.Upload(t, []float32{1, 2})
	if _, err := l.s.Wait(context.Background()); err != nil {
		l.errorf("Wait before the error: %v", err)
	}
	wrong()
	l.s.Upload(t, []float32{3, 4})
	l.s.Zero(t)
	first := l.s.Download(make([]float32, 2), t)
	if first == nil {
		l.errorf("Download after an error returned none")
	}
	if err := l.s.Download(make([]float32, 2), t); err == nil {
		l.errorf("the error was gone at the second Download")
	}
	_, err := l.s.Wait(context.Background())
	if err == nil || first != nil && err.Error() != first.Error() {
		l.errorf("Wait returned %v, Download %v; want the stream's first error", err, first)
	}
	l.start()
	if _, err := l.s.Wait(context.Background()); err != nil {
		l.errorf("Wait did not clear the error: %v", err)
	}
	l.compare("tensor after the error", "move", t, ref.Of(1, 2, []float64{1, 2}), 0)
	l.s.Release(t)
}

func repeatCases() []Case {
	return []Case{{Name: "repeat/the same bits twice", check: checkRepeat}}
}

// checkRepeat runs every operation that adds numbers, on tensors large enough to be cut into tasks, and wants the same
// bits each time: on the same stream, and on another one.
func checkRepeat(l *lab) {
	const rows, cols, vocab = 130, 256, 512
	r := &repeat{
		lab: l, rows: rows, cols: cols, vocab: vocab,
		x: l.random(rows, cols, 1), dy: l.random(rows, vocab, 1), w: l.random(vocab, cols, 1), kv: l.random(rows, cols/2, 1),
		norm: l.random(1, cols, 1), z: l.random(rows, vocab, 2), t: l.random(rows, vocab, 2), ids: l.randomIDs(rows, 7),
	}
	first := r.run()
	for i := range 3 {
		if i == 2 {
			l.inspect()
			l.s = l.dev.NewStream()
		}
		for j, b := range r.run() {
			if b != first[j] {
				l.errorf("run %d: number %d of %d has other bits", i+2, j, len(first))
				return
			}
		}
	}
}

// repeat holds the inputs of checkRepeat and the bits of one run.
type repeat struct {
	*lab
	rows, cols, vocab        int
	x, dy, w, kv, norm, z, t ref.Mat
	ids                      []int
	bits                     []uint32
}

func (r *repeat) keep(ts ...device.Tensor) {
	for _, t := range ts {
		for _, v := range singles(r.get(t)) {
			r.bits = append(r.bits, math.Float32bits(v))
		}
	}
}

func (r *repeat) run() []uint32 {
	r.bits = nil
	x := r.in(r.act, r.x)
	dx := r.products(x)
	r.layers(x, dx)
	if !slices.Contains(r.dev.Info().Lacks, device.Experts) {
		r.experts(x, dx)
	}
	if !slices.Contains(r.dev.Info().Lacks, device.DeltaNet) {
		r.linear(x)
	}
	r.learning(x)
	return r.bits
}

func (r *repeat) products(x device.Tensor) (dx device.Tensor) {
	dy, w := r.in(r.act, r.dy), r.frozen(r.w)
	y, dx := r.out(r.act, r.rows, r.vocab), r.out(r.act, r.rows, r.cols)
	dw, db := r.inout(tensor.F32, r.w), r.inout(tensor.F32, ref.New(1, r.vocab))
	r.s.MatMul(y, x, w, device.Tensor{}, false)
	r.s.MatMulInputGrad(dx, dy, w, false)
	r.s.MatMulWeightGrad(dw, db, dy, x)
	gu, m := r.out(r.act, r.rows, r.vocab), r.out(r.act, r.rows, r.vocab/2)
	r.s.MatMulGLU(m, gu, x, w, device.SiLU, true)
	dgu := r.out(r.act, r.rows, 2*r.cols)
	r.s.GLUBackward(dgu, dx, r.in(r.act, ref.Beside(r.x, r.x)), device.SiLU)
	r.keep(y, dx, dw, db, gu, m, dgu)
	r.s.MatMulGLU(m, gu, x, w, device.GELUTanh, true)
	r.s.GLUBackward(dgu, dx, r.in(r.act, ref.Beside(r.x, r.x)), device.GELUTanh)
	r.keep(m, dgu)
	return dx
}

func (r *repeat) layers(x, dy device.Tensor) {
	y, rstd, w := r.out(r.act, r.rows, r.cols), r.out(tensor.F32, r.rows, 1), r.in(tensor.F32, r.norm)
	dx, dw := r.inout(r.act, r.x), r.inout(tensor.F32, r.norm)
	r.s.RMSNorm(y, rstd, device.Tensor{}, x, device.Tensor{}, w, 1e-6)
	r.s.RMSNormBackward(dx, dw, dy, x, rstd, w)
	r.keep(y, rstd, dx, dw)

	a := train(2, r.rows/2, [2]int{4, 2}, r.cols/4)
	k, v := r.in(r.act, r.kv), r.in(r.act, r.kv)
	o, lse := r.out(r.act, r.rows, r.cols), r.out(tensor.F32, r.rows, a.Heads)
	dq, dk, dv := r.out(r.act, r.rows, r.cols), r.out(r.act, r.rows, r.cols/2), r.out(r.act, r.rows, r.cols/2)
	r.s.Attention(o, lse, x, k, v, a)
	r.s.AttentionBackward(dq, dk, dv, dy, o, lse, x, k, v, a)
	r.keep(o, lse, dq, dk, dv)

	a.Window, a.Cap, a.First = 20, 5, r.lab.ids(documents(a))
	r.s.Attention(o, lse, x, k, v, a)
	r.s.AttentionBackward(dq, dk, dv, dy, o, lse, x, k, v, a)
	r.keep(o, lse, dq, dk, dv)
	heads, each := a.Heads, r.cols/a.Heads
	inverse, weight, dweight := r.out(tensor.F32, r.rows, heads), r.in(tensor.F32, r.norm.ColRange(0, each)), r.inout(tensor.F32, r.norm.ColRange(0, each))
	r.s.HeadNorm(y, inverse, x, weight, each, 1e-6)
	r.s.HeadNormBackward(dx, dweight, dy, x, inverse, weight, each)
	r.keep(y, inverse, dx, dweight)
}

// linear convolves the columns of x, and runs them as q, k and v through a delta rule, and back.
func (r *repeat) linear(x device.Tensor) {
	const taps = 4
	d := device.Delta{Sequences: device.Sequences{Batch: 2, Len: r.rows / 2}, KeyHeads: 2, ValueHeads: 4, KeyDim: r.cols / 8, ValueDim: r.cols / 8}
	w := ref.Mat{Rows: r.cols, Cols: taps, V: r.w.V[:r.cols*taps]}
	wt, u, du, dx, dw := r.in(tensor.F32, w), r.out(r.act, r.rows, r.cols), r.out(r.act, r.rows, r.cols), r.out(r.act, r.rows, r.cols), r.inout(tensor.F32, w)
	ba, vector := r.in(r.act, r.kv.ColRange(0, 2*d.ValueHeads)), r.norm.ColRange(0, d.ValueHeads)
	logA, dt, dLogA, ddt := r.in(tensor.F32, vector), r.in(tensor.F32, vector), r.inout(tensor.F32, vector), r.inout(tensor.F32, vector)
	o, dba, do := r.out(r.act, r.rows, d.Inner()), r.out(r.act, r.rows, 2*d.ValueHeads), r.in(r.act, r.dy.ColRange(0, d.Inner()))
	states := r.s.Temp("states", device.Scratch, tensor.F32, d.Batch*d.ValueHeads*d.Chunks(), d.KeyDim*d.ValueDim)
	to := r.out(tensor.F32, d.Batch*d.ValueHeads, d.KeyDim*d.ValueDim)
	var none device.Tensor
	r.s.Conv(u, x, wt, none, none, d.Sequences)
	r.s.DeltaNet(o, u, ba, logA, dt, none, to, d)
	r.s.DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	r.s.ConvBackward(dx, dw, du, x, wt, d.Sequences)
	r.keep(u, o, to, du, dba, dLogA, ddt, dx, dw)
	r.s.Release(states)
}

// experts routes the rows of x, by some of its columns, through matrices of experts and back.
func (r *repeat) experts(x, dy device.Tensor) {
	const experts, active = 8, 2
	slots, cols := r.rows*active, r.cols
	route := r.choice(r.rows, experts, active, false)
	z, scale := r.in(tensor.F32, r.x.ColRange(0, experts)), r.in(tensor.F32, r.norm.ColRange(0, experts))
	w, dw, dz, dscale := r.out(tensor.F32, r.rows, active), r.out(tensor.F32, r.rows, active), r.out(r.act, r.rows, experts), r.inout(tensor.F32, r.norm.ColRange(0, experts))
	r.s.Route(w, z, scale, route)
	xs, ys, y := r.out(r.act, slots, cols), r.out(r.act, slots, r.vocab/experts), r.out(r.act, r.rows, r.vocab/experts)
	all := ref.Mat{Rows: r.vocab / experts * experts, Cols: cols, V: r.w.V[:r.vocab/experts*experts*cols]}
	matrices, dall := r.frozen(all), r.inout(tensor.F32, all)
	r.s.Gather(xs, x, route.Rows)
	r.s.GroupedMatMul(ys, xs, matrices, device.Tensor{}, route)
	r.s.Combine(y, ys, w, route, false)
	r.keep(w, ys, y)
	r.s.CombineBackward(ys, dw, y, ys, w, route)
	r.s.RouteBackward(dz, dscale, dw, z, scale, route)
	r.s.GroupedWeightGrad(dall, device.Tensor{}, ys, xs, route)
	r.s.GroupedInputGrad(xs, ys, matrices, route, false)
	back := r.out(r.act, r.rows, cols)
	r.s.Combine(back, xs, device.Tensor{}, route, false)
	r.keep(dw, dz, dscale, dall, xs, back)
	r.dismiss(route)
}

func (r *repeat) learning(x device.Tensor) {
	grad, embed := r.out(r.act, r.rows, r.vocab), r.inout(tensor.F32, r.w)
	z, t, ids := r.in(tensor.F32, r.z), r.in(tensor.F32, r.t), r.lab.ids(r.ids)
	p := r.param("p", r.w, true)
	r.s.Upload(p.Grad, singles(r.w))
	r.start()
	r.s.Loss(grad, z, t, ids, device.LossSpec{Alpha: .5, Temperature: 2, Divergence: device.ReverseKL})
	r.s.EmbedBackward(embed, ids, x)
	r.s.Verdict([]*device.Param{p})
	r.s.AdamW([]*device.Param{p}, device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8})
	s := r.record()
	r.keep(grad, embed, p.Value)
	for _, v := range []float64{s.CE, s.D, s.Entropy, s.GradNorm, s.Scale} {
		b := math.Float64bits(v)
		r.bits = append(r.bits, uint32(b), uint32(b>>32))
	}
}
