//go:build emulate || gpu

package cuda_test

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/tensor"
)

// tiny is a student of one layer and a teacher of a head alone: every operation of a distillation step once.
type tiny struct {
	d                                   device.Device
	s                                   device.Stream
	act                                 tensor.DType
	embed, norm, qkv, bias, o, gu, down *device.Param
	params                              []*device.Param
	teacher                             device.Weight
	ids, targets, keep                  device.Tensor
}

const (
	tinyRows, tinyLen, tinyHidden, tinyHeads, tinyKV, tinyDim, tinyWide, tinyVocab = 2, 33, 64, 4, 2, 16, 96, 160
	tinyN                                                                          = tinyRows * tinyLen
	tinyQ, tinyQKV                                                                 = tinyHeads * tinyDim, (tinyHeads + 2*tinyKV) * tinyDim
)

// frequencies returns θ^(−2i/headDim).
func frequencies(theta float64, headDim int) *device.Frequencies {
	f := &device.Frequencies{Inv: make([]float64, headDim/2)}
	for i := range f.Inv {
		f.Inv[i] = math.Pow(theta, -2*float64(i)/float64(headDim))
	}
	return f
}

func newTiny(d device.Device) *tiny {
	m := &tiny{d: d, s: d.NewStream(), act: d.Info().Activations}
	rng := rand.New(rand.NewPCG(3, 4))
	normal := func(n int, scale float64) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(scale * rng.NormFloat64())
		}
		return v
	}
	param := func(name string, rows, cols int) *device.Param {
		p := d.Param(device.ParamSpec{Name: name, Rows: rows, Cols: cols, Decay: rows > 1})
		m.s.Upload(p.Value, normal(rows*cols, 0.2))
		m.s.RefreshWeight(p)
		m.params = append(m.params, p)
		return p
	}
	m.embed, m.norm = param("embed", tinyVocab, tinyHidden), param("norm", 1, tinyHidden)
	m.qkv, m.bias, m.o = param("qkv", tinyQKV, tinyHidden), param("bias", 1, tinyQKV), param("o", tinyHidden, tinyQ)
	m.gu, m.down = param("gate_up", 2*tinyWide, tinyHidden), param("down", tinyHidden, tinyWide)
	t := d.Alloc("teacher", device.TeacherWeights, tensor.F32, tinyVocab, tinyHidden)
	m.s.Upload(t, normal(tinyVocab*tinyHidden, 0.3))
	m.teacher = d.Frozen(t)
	ints := func(name string, n int) device.Tensor { return d.Alloc(name, device.Batch, tensor.I32, n, 1) }
	m.ids, m.targets, m.keep = ints("ids", tinyN), ints("targets", tinyN/2), ints("keep", tinyN/2)
	return m
}

// step is one optimiser step, and returns its record.
func (m *tiny) step(t *testing.T, n int) device.Scalars {
	t.Helper()
	sc, err := m.try(n)
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

// try is a step that may fail.
func (m *tiny) try(n int) (device.Scalars, error) {
	s := m.s
	ids, targets, keep := make([]int32, tinyN), make([]int32, tinyN/2), make([]int32, tinyN/2)
	for i := range ids {
		ids[i] = int32((7*i + n) % tinyVocab)
	}
	for i := range targets {
		targets[i], keep[i] = int32((11*i+n)%tinyVocab), int32(2*i)
	}
	s.UploadInts(m.ids, ids)
	s.UploadInts(m.targets, targets)
	s.UploadInts(m.keep, keep)
	a := device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}
	s.SetScalars(device.Scalars{
		LR: 1e-2, InvN: 2. / tinyN, MaxNorm: 1, BiasCorr1: 1 - math.Pow(.9, float64(n+1)), BiasCorr2: 1 - math.Pow(.95, float64(n+1)),
	})
	for _, p := range m.params {
		s.Zero(p.Grad)
	}
	m.pass()
	s.Phase(device.PhaseOptimizer)
	s.Verdict(m.params)
	s.AdamW(m.params, a)
	return s.Wait(context.Background())
}

// pass is forward, loss and backward.
func (m *tiny) pass() {
	s := m.s
	var none device.Tensor
	var all []device.Tensor
	temp := func(name string, d tensor.DType, rows, cols int) device.Tensor {
		x := s.Temp(name, device.Activations, d, rows, cols)
		all = append(all, x)
		return x
	}
	act := func(name string, cols int) device.Tensor { return temp(name, m.act, tinyN, cols) }
	s.Phase(device.PhaseForward)
	x, y, rstd := act("x", tinyHidden), act("y", tinyHidden), temp("rstd", tensor.F32, tinyN, 1)
	qkv, att, lse := act("qkv", tinyQKV), act("attention", tinyQ), temp("lse", tensor.F32, tinyN, tinyHeads)
	delta, x2, gu, prod := act("delta", tinyHidden), act("x2", tinyHidden), act("gu", 2*tinyWide), act("prod", tinyWide)
	y2, rstd2 := act("y2", tinyHidden), temp("rstd2", tensor.F32, tinyN, 1)
	kept, z, tz := temp("kept", m.act, tinyN/2, tinyHidden), temp("z", tensor.F32, tinyN/2, tinyVocab), temp("t", tensor.F32, tinyN/2, tinyVocab)
	dz := temp("dz", m.act, tinyN/2, tinyVocab)
	shape := device.Attn{Batch: tinyRows, QLen: tinyLen, KLen: tinyLen, KStride: tinyLen, Heads: tinyHeads, KVHeads: tinyKV, HeadDim: tinyDim}
	r := device.Rotary{HeadDim: tinyDim, Table: frequencies(1e4, tinyDim), SeqLen: tinyLen}
	split := func(t device.Tensor) (q, k, v device.Tensor) {
		return t.ColRange(0, tinyQ), t.ColRange(tinyQ, tinyQ+tinyKV*tinyDim), t.ColRange(tinyQ+tinyKV*tinyDim, tinyQKV)
	}
	q, k, v := split(qkv)

	s.Embed(x, m.embed.Weight, m.ids)
	s.RMSNorm(y, rstd, none, x, none, m.norm.Value, 1e-6)
	s.MatMul(qkv, y, m.qkv.Weight, m.bias.Value, false)
	s.Rotate(qkv.ColRange(0, tinyQ+tinyKV*tinyDim), r)
	s.Attention(att, lse, q, k, v, shape)
	s.MatMul(delta, att, m.o.Weight, none, false)
	s.RMSNorm(y2, rstd2, x2, x, delta, m.norm.Value, 1e-6)
	s.MatMulGLU(prod, gu, y2, m.gu.Weight, device.SiLU, true)
	s.MatMul(x2, prod, m.down.Weight, none, true)
	s.Gather(kept, x2, m.keep)

	s.Phase(device.PhaseLoss)
	s.MatMul(z, kept, m.embed.Weight, none, false)
	s.MatMul(tz, kept, m.teacher, none, false)
	s.Loss(dz, z, tz, m.targets, device.LossSpec{Alpha: .5, Temperature: 2})

	s.Phase(device.PhaseBackward)
	dkept, dx := temp("dkept", m.act, tinyN/2, tinyHidden), act("dx", tinyHidden)
	dgu, dprod, dy := act("dgu", 2*tinyWide), act("dprod", tinyWide), act("dy", tinyHidden)
	datt, dqkv := act("datt", tinyQ), act("dqkv", tinyQKV)
	s.MatMulInputGrad(dkept, dz, m.embed.Weight, false)
	s.MatMulWeightGrad(m.embed.Grad, none, dz, kept)
	s.Scatter(dx, dkept, m.keep)
	s.MatMulWeightGrad(m.down.Grad, none, dx, prod)
	s.MatMulInputGrad(dprod, dx, m.down.Weight, false)
	s.GLUBackward(dgu, dprod, gu, device.SiLU)
	s.MatMulWeightGrad(m.gu.Grad, none, dgu, y2)
	s.MatMulInputGrad(dy, dgu, m.gu.Weight, false)
	s.RMSNormBackward(dx, m.norm.Grad, dy, x2, rstd2, m.norm.Value)
	s.MatMulWeightGrad(m.o.Grad, none, dx, att)
	s.MatMulInputGrad(datt, dx, m.o.Weight, false)
	dq, dk, dv := split(dqkv)
	s.AttentionBackward(dq, dk, dv, datt, att, lse, q, k, v, shape)
	r.Inverse = true
	s.Rotate(dqkv.ColRange(0, tinyQ+tinyKV*tinyDim), r)
	s.MatMulWeightGrad(m.qkv.Grad, m.bias.Grad, dqkv, y)
	s.MatMulInputGrad(dy, dqkv, m.qkv.Weight, false)
	s.RMSNormBackward(dx, m.norm.Grad, dy, x, rstd, m.norm.Value)
	s.EmbedBackward(m.embed.Grad, m.ids, dx)
	s.Release(all...)
}

// TestSteps: after the first step nothing is loaded or allocated any more, and the host waits once in each.
func TestSteps(t *testing.T) {
	findDriver(t)
	for _, c := range []struct {
		name string
		o    cuda.Options
	}{
		{"bf16", cuda.Options{}}, {"bf16 without cublasLt", cuda.Options{ForceFallbackGEMM: true}}, {"f32", cuda.Options{Compute: cuda.F32}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.StrictSeal = true
			d := open(t, c.o)
			defer d.Close()
			m := newTiny(d)
			first := m.step(t, 0)
			d.Seal()
			if !first.Finite || !(first.CE > 0) || !(first.D > 0) || first.Positions != tinyN/2 {
				t.Fatalf("first step: %+v", first)
			}
			before := d.Stats()
			now, peak := d.Memory()
			var last device.Scalars
			const steps = 3
			for n := range steps {
				last = m.step(t, n+1)
			}
			after := d.Stats()
			if got := after.HostWaits - before.HostWaits; got != steps {
				t.Errorf("%d host waits in %d steps", got, steps)
			}
			if after.Loads != before.Loads || after.LateLoads != 0 || after.Loads == 0 {
				t.Errorf("%d modules and products were loaded at first, %d later", before.Loads, after.Loads-before.Loads)
			}
			if after.Allocations != before.Allocations || after.Allocated != before.Allocated {
				t.Errorf("%d allocations after the first step", after.Allocations-before.Allocations)
			}
			if after.Launches == before.Launches || after.Products-before.Products != steps*16 {
				t.Errorf("%d launches, %d products in %d steps", after.Launches-before.Launches, after.Products-before.Products, steps)
			}
			if !(last.CE+last.D < first.CE+first.D) {
				t.Errorf("CE + D went from %g to %g", first.CE+first.D, last.CE+last.D)
			}
			nowAfter, peakAfter := d.Memory()
			for c := range peakAfter {
				if now[c] != nowAfter[c] || peak[c] != peakAfter[c] {
					t.Errorf("%s: memory went from %d (peak %d) to %d (peak %d)", c, now[c], peak[c], nowAfter[c], peakAfter[c])
				}
			}
		})
	}
}

// TestStepsAreTheSame: two devices take the same steps and have the same bits.
func TestStepsAreTheSame(t *testing.T) {
	findDriver(t)
	var bits [2][]float32
	for i := range bits {
		d := open(t, cuda.Options{})
		m := newTiny(d)
		for n := range 3 {
			m.step(t, n)
		}
		for _, p := range m.params {
			v := make([]float32, p.Rows*p.Cols)
			if err := m.s.Download(v, p.Value); err != nil {
				t.Fatal(err)
			}
			bits[i] = append(bits[i], v...)
		}
		d.Close()
	}
	for i := range bits[0] {
		if math.Float32bits(bits[0][i]) != math.Float32bits(bits[1][i]) {
			t.Fatalf("value %d is %g and %g", i, bits[0][i], bits[1][i])
		}
	}
}

// TestPlannedSteps: a dry step tells what to prepare; then the first real step allocates and loads nothing, and gives the
// bits of a device that nobody prepared.
func TestPlannedSteps(t *testing.T) {
	findDriver(t)
	for _, c := range []struct {
		name string
		o    cuda.Options
	}{{"bf16", cuda.Options{}}, {"f32", cuda.Options{Compute: cuda.F32}}, {"bf16 without cublasLt", cuda.Options{ForceFallbackGEMM: true}}} {
		t.Run(c.name, func(t *testing.T) {
			plain := open(t, c.o)
			want := newTiny(plain).step(t, 0)
			plain.Close()

			c.o.StrictSeal = true
			d := open(t, c.o)
			defer d.Close()
			planned := dry.New(d.Target())
			newTiny(planned).step(t, 0)
			r := planned.Record()
			if err := d.Prepare(r); err != nil {
				t.Fatal(err)
			}
			d.Seal()
			before := d.Stats()
			if before.Allocated != r.Total() {
				t.Errorf("%d bytes prepared, the plan says %d", before.Allocated, r.Total())
			}
			got := newTiny(d).step(t, 0)
			after := d.Stats()
			if after.Allocated != before.Allocated || after.Allocations != before.Allocations || after.Loads != before.Loads {
				t.Errorf("prepared %+v; after a step %+v", before, after)
			}
			if got.CE != want.CE || got.D != want.D || got.GradNorm != want.GradNorm {
				t.Errorf("prepared %+v, unprepared %+v", got, want)
			}
		})
	}
}

// TestSkippedModules: with cublasLt the products of this program are not loaded, and a line of the log says what that
// saves; the bits are those of a device that loaded them.
func TestSkippedModules(t *testing.T) {
	findDriver(t)
	var loads [2]int64
	for i, force := range []bool{false, true} {
		var log bytes.Buffer
		d := open(t, cuda.Options{ForceFallbackGEMM: force, KernelLog: &log})
		if err := d.Prewarm(); err != nil {
			t.Fatal(err)
		}
		loads[i] = d.Stats().Loads
		if skipped := strings.Contains(log.String(), "event=skip key=gemm "); skipped == force {
			t.Errorf("without cublasLt %v; log:\n%s", force, log.String())
		}
		d.Close()
	}
	if loads[0] >= loads[1] || loads[0] == 0 {
		t.Errorf("%d modules with cublasLt, %d without", loads[0], loads[1])
	}
}
