package devicetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"apr/device"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
)

// slow is a device that computes with internal/ref and stores what it is told to store: the suite's own test, and the
// ground on which mutants stand. Its operations are variables, so that a mutant replaces one.
type slow struct {
	device.Accounts // Memory
	act             tensor.DType
	tf32            bool
	ops             ops
}

// ops are the operations a mutant may replace.
type ops struct {
	rmsNorm        func(x, w ref.Mat, eps float64) (y, rstd ref.Mat)
	rmsNormBack    func(dy, x, rstd, w ref.Mat) (dx, dw ref.Mat)
	linear         func(x, w, bias ref.Mat) ref.Mat
	linearBack     func(dy, x, w ref.Mat) (dx, dw, dbias ref.Mat)
	headNorm       func(x, w ref.Mat, headDim int, eps float64) (y, rstd ref.Mat)
	headNormBack   func(dy, x, rstd, w ref.Mat, headDim int) (dx, dw ref.Mat)
	headNormAdds   bool // HeadNormBackward adds dx
	rotate         func(x ref.Mat, r device.Rotary, at []int) ref.Mat
	attention      func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (o, lse ref.Mat)
	attentionBack  func(do, o, q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv ref.Mat)
	sinkGrad       func(do, o, q, k ref.Mat, a device.Attn, first []int, sinks []float64) ref.Mat
	deinterleave   func(x ref.Mat, width int) (a, b ref.Mat)
	interleave     func(a, b ref.Mat, width int) ref.Mat
	conv           func(x, w ref.Mat, c device.Sequences, first []int, from ref.Mat) (y, to ref.Mat)
	convBack       func(dy, x, w ref.Mat, c device.Sequences, first []int) (dx, dw ref.Mat)
	delta          func(u, ba, logA, dt ref.Mat, d device.Delta, first []int, from ref.Mat) (o, to ref.Mat)
	deltaBack      func(do, u, ba, logA, dt ref.Mat, d device.Delta, first []int) (du, dba, dLogA, ddt ref.Mat)
	glu            func(gu ref.Mat, act device.Activation) ref.Mat
	gluBack        func(dm, gu ref.Mat, act device.Activation) ref.Mat
	plus           func(dst, src ref.Mat)
	scale          func(x ref.Mat, f float64) ref.Mat
	softCap        func(x ref.Mat, c float64) ref.Mat
	dropout        func(x ref.Mat, d device.Drop) ref.Mat
	drawNext       func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64)
	project        func(t ref.Mat, starts, ids []int, weights []float64, temperature float64) ref.Mat
	drawsLogits    func(drawn []int, n, cols int, temperature float64) ref.Mat
	checkDrawn     bool
	drawMany       func(z []float64, us []uint64, temperature float64) (ids []int, entropy float64)
	mix            func(y, t ref.Mat, w, temperature float64) ref.Mat
	maps           func(s, t ref.Map, counts []bool, weight, invN float64) (sum float64, dq, dk, dsinks ref.Mat)
	squared        func(u, t ref.Mat, weight, invN float64) (sum float64, grad ref.Mat)
	experts        expertOps
	blocks         blockOps
	low            lowOps
	loss           func(z, t ref.Mat, targets []int, invN float64, spec device.LossSpec) (device.Scalars, ref.Mat)
	argMax         func(x ref.Mat) []int
	best           func(x ref.Mat) ref.Mat
	embedBack      func(grad ref.Mat, ids []int, dx ref.Mat)
	adamW          func(w, grad, m, v ref.Mat, decay bool, a device.AdamW, s device.Scalars)
	weightRows     func(rows []int, part, all int) int
	accumulate     func(into, m ref.Mat) // what += does
	scatterZero    bool
	putZero        bool
	pages          pagesOp
	stepLoss       func(s device.Scalars) float64 // of Verdict
	guardFinite    bool
	guardDiverged  bool
	sticky         bool
	honourStride   bool
	refresh        bool
	adamWRefreshes bool
	keepsProduct   bool                                            // MatMulGLU writes gu
	gatesStored    bool                                            // and reads it rounded
	gated          func(gu ref.Mat, act device.Activation) ref.Mat // GLU of MatMulGLU
	readsFirst     bool                                            // GLUBackward reads all of gu before it writes dgu
}

func newSlow(act tensor.DType) *slow {
	return &slow{act: act, ops: ops{
		rmsNorm: ref.RMSNorm, rmsNormBack: ref.RMSNormBackward, linear: ref.Linear, linearBack: ref.LinearBackward,
		headNorm: ref.HeadNorm, headNormBack: ref.HeadNormBackward, rotate: ref.Rotate, attention: ref.Attention,
		pages:         ref.AttendPages,
		attentionBack: ref.AttentionBackward, sinkGrad: ref.SinkGrad, deinterleave: ref.Deinterleave, interleave: interleave,
		glu: ref.GLU, gluBack: ref.GLUBackward, plus: ref.Mat.Add, scale: ref.Scale, softCap: ref.SoftCap, dropout: ref.Dropout,
		mix: ref.Mix, project: ref.Project, drawsLogits: ref.DrawsLogits, checkDrawn: true, drawMany: ref.DrawMany,
		drawNext: drawn, squared: ref.SquaredError,
		maps: ref.AttentionDivergence,
		conv: ref.Conv, convBack: ref.ConvBackward, delta: ref.DeltaNet, deltaBack: ref.DeltaNetBackward,
		experts: rightExperts(), blocks: rightBlocks(), low: rightLow(), gated: ref.GLU, keepsProduct: true, gatesStored: true, readsFirst: true,
		loss: ref.Loss, argMax: ref.ArgMax, best: ref.Best, embedBack: ref.EmbedBackward, adamW: ref.AdamW,
		weightRows: func(rows []int, part, all int) int {
			if rows == nil {
				return all
			}
			return rows[part]
		},
		accumulate:  func(into, m ref.Mat) { into.Add(m) },
		stepLoss:    stepLoss,
		scatterZero: true, guardFinite: true, guardDiverged: true, sticky: true, honourStride: true, refresh: true, adamWRefreshes: true,
	}}
}

// interleave is the inverse of ref.Deinterleave.
func interleave(a, b ref.Mat, width int) ref.Mat {
	cols := []ref.Mat{ref.New(a.Rows, 0)}
	for c := 0; c < a.Cols; c += width {
		cols = append(cols, a.ColRange(c, c+width), b.ColRange(c, c+width))
	}
	return ref.Beside(cols...)
}

// stepLoss is Scalars.Loss.
func stepLoss(s device.Scalars) float64 {
	loss := s.CEWeight*(s.CE*s.InvN) + s.DWeight*(s.D*s.InvN)
	for i, w := range s.Weights {
		if w != 0 {
			loss += w * (s.Sums[i] * s.InvN)
		}
	}
	return loss
}

type slowBuffer struct {
	v     []float64
	name  string
	size  int64
	comp  device.Component
	state device.State
}

func (b *slowBuffer) Bytes() int64        { return b.size }
func (b *slowBuffer) Name() string        { return b.name }
func (b *slowBuffer) State() device.State { return b.state }

type slowWeight struct {
	m    func() ref.Mat
	size int64
	rows int
	cols int
}

func (w *slowWeight) Rows() int    { return w.rows }
func (w *slowWeight) Cols() int    { return w.cols }
func (w *slowWeight) Bytes() int64 { return w.size }

func (d *slow) Info() device.Info {
	return device.Info{Kind: "slow", Name: "float64", Workers: 1, Activations: d.act, TF32: d.tf32}
}

func (d *slow) Alloc(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	n := device.TensorBytes(device.OpAlloc, t, rows, cols)
	b := &slowBuffer{v: make([]float64, rows*cols), name: name, size: n, comp: c, state: device.Lasting}
	d.Add(c, n)
	return device.Whole(b, t, rows, cols)
}

func (d *slow) Free(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckFree(t)
		b := t.Buf.(*slowBuffer)
		d.Add(b.comp, -b.size)
		b.v, b.state = nil, device.Gone
	}
}

func (d *slow) Weight(spec device.WeightSpec) (device.Weight, error) {
	var parts []ref.Mat
	w := &slowWeight{}
	for i, p := range spec.Parts {
		info := p.Info()
		rows := d.ops.weightRows(spec.Rows, i, info.Rows())
		raw, values := make([]byte, int64(rows)*info.DType.RowBytes(info.Cols())), make([]float32, rows*info.Cols())
		if err := p.ReadRows(raw, 0, rows); err != nil {
			return nil, fmt.Errorf("weight %s: %w", spec.Name, err)
		}
		if info.DType.IsFloat() {
			tensor.Widen(values, raw, info.DType)
		} else {
			quant.Dequantize(values, raw, info.DType)
		}
		parts = append(parts, ref.Of(rows, info.Cols(), values))
		w.size += int64(len(raw))
	}
	m := ref.Stack(parts...)
	w.m, w.rows, w.cols = func() ref.Mat { return m }, m.Rows, m.Cols
	d.Add(spec.Component, w.size)
	return w, nil
}

func (d *slow) Param(spec device.ParamSpec) *device.Param {
	return device.NewParam(spec, false, d.Alloc, func(read device.Tensor) device.Weight {
		if len(spec.Blocks) > 0 {
			return d.reads(read)
		}
		return d.reads(d.Alloc(spec.Name, device.StudentWeights, d.act, spec.Rows, spec.Cols))
	})
}

func (d *slow) Frozen(t device.Tensor) device.Weight {
	device.CheckFrozen(t)
	return d.reads(t)
}

// reads returns a weight that reads t, of any type.
func (d *slow) reads(t device.Tensor) device.Weight {
	s := &slowStream{slow: d}
	return &slowWeight{m: func() ref.Mat { return s.read(t) }, size: 1, rows: t.Rows, cols: t.Cols}
}

func (d *slow) NewStream() device.Stream { return &slowStream{slow: d} }

func (d *slow) Close() error { return nil }

type slowStream struct {
	*slow
	err     error
	scalars device.Scalars
	phase   device.Phase
	since   time.Time
	free    []*slowBuffer // in the order of their making
	all     []*slowBuffer
}

// read returns the matrix that t views.
func (s *slowStream) read(t device.Tensor) ref.Mat {
	m := ref.New(t.Rows, t.Cols)
	for i := range m.V {
		m.V[i] = t.Buf.(*slowBuffer).v[s.at(t, i)]
	}
	return m
}

// write stores m in t, rounded to its type.
func (s *slowStream) write(t device.Tensor, m ref.Mat) {
	if s.err != nil && s.ops.sticky {
		return
	}
	m = m.Clone()
	if t.DType != tensor.I32 {
		round(m, t.DType)
	}
	for i, v := range m.V {
		t.Buf.(*slowBuffer).v[s.at(t, i)] = v
	}
}

// at is the place of element i of t in its buffer.
func (s *slowStream) at(t device.Tensor, i int) int {
	if !s.ops.honourStride {
		return t.Off + i
	}
	return t.Off + i/t.Cols*t.Stride + i%t.Cols
}

func (s *slowStream) ints(t device.Tensor) []int {
	var out []int
	for _, v := range s.read(t).V {
		out = append(out, int(v))
	}
	return out
}

// optional is read, with the zero Mat for the zero Tensor.
func (s *slowStream) optional(t device.Tensor) ref.Mat {
	if t.IsZero() {
		return ref.Mat{}
	}
	return s.read(t)
}

// add writes t + m, as accumulate has it.
func (s *slowStream) add(t device.Tensor, m ref.Mat) {
	sum := s.read(t)
	s.ops.accumulate(sum, m)
	s.write(t, sum)
}

func (s *slowStream) Temp(name string, c device.Component, d tensor.DType, rows, cols int) device.Tensor {
	size, n := device.TensorBytes(device.OpTemp, d, rows, cols), rows*cols
	i := slices.IndexFunc(s.free, func(b *slowBuffer) bool { return len(b.v) == n })
	var b *slowBuffer
	if i >= 0 {
		b = s.free[i]
		s.free = slices.Delete(s.free, i, i+1)
	} else {
		b = &slowBuffer{v: make([]float64, n)}
		s.all = append(s.all, b)
	}
	b.name, b.comp, b.size, b.state = name, c, size, device.Temporary
	s.slow.Add(c, size)
	return device.Whole(b, d, rows, cols)
}

func (s *slowStream) Release(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckRelease(t)
		if t.IsZero() {
			continue
		}
		b := t.Buf.(*slowBuffer)
		s.slow.Add(b.comp, -b.size)
		b.state = device.Gone
		s.free = append(s.free, b)
	}
	slices.SortFunc(s.free, func(a, b *slowBuffer) int { return slices.Index(s.all, a) - slices.Index(s.all, b) })
}

func (s *slowStream) Upload(t device.Tensor, src []float32) {
	device.CheckUpload(t, src)
	s.write(t, ref.Of(t.Rows, t.Cols, src))
}

func (s *slowStream) UploadInts(t device.Tensor, src []int32) {
	device.CheckUploadInts(t, src)
	m := ref.New(t.Rows, t.Cols)
	for i, v := range src {
		m.V[i] = float64(v)
	}
	s.write(t, m)
}

func (s *slowStream) Download(dst []float32, t device.Tensor) error {
	device.CheckDownload(dst, t)
	copy(dst, singles(s.read(t)))
	return s.err
}

func (s *slowStream) RefreshWeight(p *device.Param) {
	device.CheckRefreshWeight(p)
	if len(p.Blocks) > 0 {
		s.makeBlocks(p, !s.ops.blocks.refreshRounds)
		return
	}
	if s.ops.refresh {
		copied := p.Weight.(*slowWeight)
		m := s.read(p.Value)
		round(m, s.act)
		if s.err == nil {
			copied.m = func() ref.Mat { return m }
		}
	}
}
func (s *slowStream) Zero(t device.Tensor) {
	device.CheckZero(t)
	s.write(t, ref.New(t.Rows, t.Cols))
}
func (s *slowStream) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	s.write(dst, s.read(src))
}

func (s *slowStream) Embed(dst device.Tensor, w device.Weight, ids device.Tensor) {
	device.CheckEmbed(dst, w, ids)
	rows := s.ints(ids)
	for _, id := range rows {
		if id < 0 || id >= w.Rows() {
			s.fail(fmt.Errorf("id %d outside the embedding", id))
			return
		}
	}
	s.write(dst, ref.Embed(w.(*slowWeight).m(), rows))
}

func (s *slowStream) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *slowStream) EmbedBackward(grad, ids, dx device.Tensor) {
	device.CheckEmbedBackward(grad, ids, dx)
	sum := ref.New(grad.Rows, grad.Cols)
	s.ops.embedBack(sum, s.ints(ids), s.read(dx))
	s.add(grad, sum)
}

func (s *slowStream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	device.CheckRMSNorm(y, rstd, sum, x, delta, w)
	v := s.read(x)
	if !delta.IsZero() {
		v.Add(s.read(delta))
		s.write(sum, v)
		v = s.read(sum)
	}
	out, r := s.ops.rmsNorm(v, s.read(w), eps)
	if !y.IsZero() {
		s.write(y, out)
	}
	if !rstd.IsZero() {
		s.write(rstd, r)
	}
}

func (s *slowStream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	device.CheckRMSNormBackward(dx, dw, dy, x, rstd, w)
	a, b := s.ops.rmsNormBack(s.read(dy), s.read(x), s.read(rstd), s.read(w))
	s.add(dx, a)
	s.add(dw, b)
}

func (s *slowStream) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	device.CheckMatMul(y, x, w, bias)
	out := s.ops.linear(s.read(x), w.(*slowWeight).m().RowRange(0, y.Cols), s.optional(bias))
	if add {
		s.add(y, out)
	} else {
		s.write(y, out)
	}
}

func (s *slowStream) MatMulInputGrad(dx, dy device.Tensor, w device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, w)
	out, _, _ := s.ops.linearBack(s.read(dy), ref.New(dy.Rows, dx.Cols), w.(*slowWeight).m().RowRange(0, dy.Cols))
	if add {
		s.add(dx, out)
	} else {
		s.write(dx, out)
	}
}

func (s *slowStream) MatMulWeightGrad(dw, dbias, dy, x device.Tensor) {
	device.CheckMatMulWeightGrad(dw, dbias, dy, x)
	_, a, b := s.ops.linearBack(s.read(dy), s.read(x), ref.New(dw.Rows, dw.Cols))
	s.add(dw, a)
	if !dbias.IsZero() {
		s.add(dbias, b)
	}
}

func (s *slowStream) Gather(dst, src, rows device.Tensor) {
	device.CheckGather(dst, src, rows)
	s.write(dst, ref.Embed(s.read(src), s.ints(rows)))
}

func (s *slowStream) Scatter(dst, src, rows device.Tensor) {
	device.CheckScatter(dst, src, rows)
	m, from := s.read(dst), s.read(src)
	if s.ops.scatterZero {
		m = ref.New(dst.Rows, dst.Cols)
	}
	for i, r := range s.ints(rows) {
		copy(m.Row(r), from.Row(i))
	}
	s.write(dst, m)
}

func (s *slowStream) SetScalars(v device.Scalars) {
	s.scalars, s.phase, s.since = v, device.PhaseData, time.Now()
	s.scalars.Phases = [device.NumPhases]time.Duration{}
}

func (s *slowStream) Phase(p device.Phase) {
	device.CheckPhase(p)
	s.scalars.Phases[s.phase] += time.Since(s.since)
	s.phase, s.since = p, time.Now()
}

func (s *slowStream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	device.CheckLoss(grad, z, t, targets, spec)
	ids := s.ints(targets)
	for _, id := range ids {
		if id < 0 || id >= z.Cols {
			s.fail(errors.New("target outside the vocabulary"))
			return
		}
	}
	s.addLoss(grad, s.read(z), s.optional(t), ids, spec)
}

func (s *slowStream) addLoss(grad device.Tensor, z, t ref.Mat, ids []int, spec device.LossSpec) {
	sums, dz := s.ops.loss(z, t, ids, s.scalars.InvN, spec)
	s.scalars.Positions += sums.Positions
	s.scalars.CE += sums.CE
	s.scalars.D += sums.D
	s.scalars.Agree += sums.Agree
	s.scalars.Entropy += sums.Entropy
	if !grad.IsZero() {
		s.write(grad, dz)
	}
}

func (s *slowStream) SquaredError(grad, u, t device.Tensor, weight float64) {
	device.CheckSquaredError(grad, u, t, weight)
	sum, g := s.ops.squared(s.read(u), s.read(t), weight, s.scalars.InvN)
	s.scalars.Sums[device.HiddenStates] += sum
	s.write(grad, g)
}

func (s *slowStream) CompareMaps(dq, dk device.Tensor, own, big device.AttnMap, rows device.Tensor, weight float64) {
	device.CheckCompareMaps(dq, dk, own, big, rows, weight)
	var counts []bool
	if !rows.IsZero() {
		counts = make([]bool, own.Q.Rows)
		for _, r := range s.ints(rows) {
			counts[r] = true
		}
	}
	sum, gq, gk, gb := s.ops.maps(s.mapOf(own), s.mapOf(big), counts, weight, s.scalars.InvN)
	s.scalars.Sums[device.AttentionTransfer] += sum
	add := func(t device.Tensor, g ref.Mat) {
		g.Add(s.read(t))
		s.write(t, g)
	}
	add(dq, gq)
	add(dk, gk)
	if !own.Attn.DSinks.IsZero() {
		add(own.Attn.DSinks, gb)
	}
}

// mapOf reads one side of CompareMaps.
func (s *slowStream) mapOf(m device.AttnMap) ref.Map {
	r := ref.Map{Q: s.read(m.Q), K: s.read(m.K), Attn: m.Attn}
	if !m.Attn.First.IsZero() {
		r.First = s.ints(m.Attn.First)
	}
	if !m.Attn.Sinks.IsZero() {
		r.Sinks = s.read(m.Attn.Sinks).V
	}
	return r
}

func (s *slowStream) Verdict(params []*device.Param) {
	device.CheckVerdict(params)
	var grads []ref.Mat
	for _, p := range params {
		grads = append(grads, s.read(p.Grad))
	}
	s.scalars.GradNorm = ref.Norm(grads...)
	s.scalars.Scale = ref.ClipScale(s.scalars.GradNorm, s.scalars.MaxNorm)
	sum := s.scalars.GradNorm + s.scalars.CE + s.scalars.D
	for _, v := range s.scalars.Sums {
		sum += v
	}
	s.scalars.Finite = !math.IsNaN(sum) && !math.IsInf(sum, 0)
	s.scalars.Loss = s.ops.stepLoss(s.scalars)
	s.scalars.Diverged = s.scalars.Finite && s.scalars.MaxLoss > 0 && s.scalars.Loss > s.scalars.MaxLoss
}

func (s *slowStream) AdamW(params []*device.Param, a device.AdamW) {
	device.CheckAdamW(params)
	if !s.scalars.Finite && s.ops.guardFinite || s.scalars.Diverged && s.ops.guardDiverged {
		return
	}
	for _, p := range params {
		w, m, v := s.read(p.Value), s.read(p.M), s.read(p.V)
		grad := s.read(p.Grad)
		if len(p.Blocks) > 0 {
			grad = ref.Scale(grad, s.ops.blocks.gradient)
		}
		s.ops.adamW(w, grad, m, v, p.Decay, a, s.scalars)
		s.write(p.Value, w)
		s.write(p.M, m)
		s.write(p.V, v)
		if s.ops.adamWRefreshes && len(p.Blocks) == 0 {
			s.RefreshWeight(p)
		}
	}
}

func (s *slowStream) ArgMax(ids, best, x device.Tensor) {
	device.CheckArgMax(ids, best, x)
	m := ref.New(ids.Rows, ids.Cols)
	for i, id := range s.ops.argMax(s.read(x)) {
		m.V[i] = float64(id)
	}
	s.write(ids, m)
	if !best.IsZero() {
		s.write(best, s.ops.best(s.read(x)))
	}
}

func (s *slowStream) Wait(context.Context) (device.Scalars, error) {
	s.Phase(s.phase)
	err := s.err
	s.err = nil
	return s.scalars, err
}
