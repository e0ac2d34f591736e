//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"unsafe"

	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

var testAdamW = device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}

// trained is a parameter with its reference.
type trained struct {
	Trainable
	name       string
	w, g, m, v ref.Mat
}

// trained makes a parameter of n values. Like all tensors of a device it starts at a multiple of 256 bytes.
func (l *lab) trained(n int, decay, copied bool, gradScale float64) *trained {
	p := &trained{name: fmt.Sprintf("%d values, decay %v, copy %v", n, decay, copied), w: l.random(1, n, .05), g: l.random(1, n, gradScale), m: l.random(1, n, .01), v: l.random(1, n, .01)}
	for i, x := range p.v.V {
		p.v.V[i] = x * x
	}
	p.Decay = decay
	p.W, p.M, p.V = l.dense(tensor.F32, p.w), l.dense(tensor.F32, p.m), l.dense(tensor.F32, p.v)
	p.G = l.dense(tensor.F32, p.g)
	if copied {
		p.Copy = l.dense(tensor.BF16, ref.New(1, n))
	}
	return p
}

// dense is inout with a lead of 256 bytes before the only row and a little room after it.
func (l *lab) dense(d tensor.DType, m ref.Mat) Mat {
	defer func(lead, gap int) { l.lead, l.gap = lead, gap }(l.lead, l.gap)
	size := d.BlockBytes()
	l.lead = 256 / size
	l.gap = (256 - (l.lead+m.Cols)*size%256) / size // the row before is a multiple of 256 bytes
	return l.inout(d, m)
}

// table places the table of params on the device.
func (l *lab) table(params []*trained) (ptr uint64, n int) {
	var list []Trainable
	for _, p := range params {
		list = append(list, p.Trainable)
	}
	pieces := ParamPieces(list)
	size := int(unsafe.Sizeof(ParamPiece{}))
	ptr, memory := l.alloc(max(1, len(pieces)*size))
	for i := range pieces {
		copy(memory[i*size:], (*[unsafe.Sizeof(ParamPiece{})]byte)(unsafe.Pointer(&pieces[i]))[:])
	}
	return ptr, len(pieces)
}

// model is parameters of awkward lengths.
func (l *lab) model(gradScale float64) []*trained {
	return []*trained{
		l.trained(33*65, true, true, gradScale), l.trained(31, false, false, gradScale), l.trained(1, false, true, gradScale),
		l.trained(paramPiece, true, true, gradScale), l.trained(paramPiece+1, true, false, gradScale),
		l.trained(2*paramPiece+1027, false, true, gradScale), l.trained(4, true, true, gradScale), l.trained(16*256+12*256+3, true, true, gradScale),
	}
}

func grads(params []*trained) (all []ref.Mat) {
	for _, p := range params {
		all = append(all, p.g)
	}
	return all
}

func TestOptimSteps(t *testing.T) {
	for _, c := range []struct {
		name               string
		gradScale, maxNorm float64
	}{
		{"no clipping", 1, 0}, {"clipped", 1, .5}, {"below the clip", 1, 1e6}, {"squares overflow float32", 1e21, 1},
		{"squares underflow float32", 1e-25, 0}, {"zero gradient", 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			params := l.model(c.gradScale)
			table, n := l.table(params)
			for step := 1; step <= 3; step++ {
				s := device.Scalars{LR: .01 / float64(step), BiasCorr1: 1 - math.Pow(testAdamW.Beta1, float64(step)), BiasCorr2: 1 - math.Pow(testAdamW.Beta2, float64(step))}
				*l.rec() = Record{LR: s.LR, Bias1: s.BiasCorr1, Bias2: s.BiasCorr2, MaxNorm: c.maxNorm}
				Verdict(l.op(), table, n)
				AdamW(l.op(), table, n, testAdamW)
				norm := ref.Norm(grads(params)...)
				s.Scale = ref.ClipScale(norm, c.maxNorm)
				r := l.rec()
				near.CheckRel(t, "norm", []float64{r.GradNorm}, []float64{norm}, 1e-12)
				near.CheckRel(t, "scale", []float64{r.Scale}, []float64{s.Scale}, 1e-12)
				if r.Finite != 1 {
					t.Errorf("norm %g is judged not finite", norm)
				}
				for _, p := range params {
					p.check(t, l, s)
				}
			}
		})
	}
}

// check takes the reference's step and compares. The next step starts from what the device has.
func (p *trained) check(t *testing.T, l *lab, s device.Scalars) {
	t.Helper()
	ref.AdamW(p.w, p.g, p.m, p.v, p.Decay, testAdamW, s)
	tol := (16 + 3) * unit32
	for _, x := range []struct {
		name string
		got  Mat
		want *ref.Mat
	}{{"value", p.W, &p.w}, {"first moment", p.M, &p.m}, {"second moment", p.V, &p.v}} {
		got := l.get(x.got)
		if near.Abs("", got.V, x.want.V, 0x1p-140) != nil { // float32 cannot hold less
			near.CheckRel(t, p.name+": "+x.name, got.V, x.want.V, tol)
		}
		*x.want = got
	}
	near.Check(t, p.name+": gradient", l.get(p.G).V, p.g.V, 0)
	if !p.Copy.IsZero() {
		want := p.w.Clone()
		for i, v := range want.V {
			want.V[i] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(v))))
		}
		near.Check(t, p.name+": copy", l.get(p.Copy).V, want.V, 0)
	}
}

// TestOptimExact: every operation is rounded as the CPU device rounds it.
func TestOptimExact(t *testing.T) {
	l := newLab(t)
	params := l.model(1)
	table, n := l.table(params)
	*l.rec() = Record{LR: .01, Bias1: .271, Bias2: .142625, MaxNorm: .5}
	Verdict(l.op(), table, n)
	AdamW(l.op(), table, n, testAdamW)
	a, r := testAdamW, l.rec()
	scale, step, invBias, eps := float32(r.Scale), float32(r.LR/r.Bias1), float32(1/math.Sqrt(r.Bias2)), float32(a.Eps)
	beta1, rest1, beta2, rest2 := float32(a.Beta1), float32(1-a.Beta1), float32(a.Beta2), float32(1-a.Beta2)
	for _, p := range params {
		decay := float32(1)
		if p.Decay {
			decay = float32(1 - r.LR*a.WeightDecay)
		}
		for i := range p.w.V {
			w, m, v, gs := float32(p.w.V[i]), float32(p.m.V[i]), float32(p.v.V[i]), float32(float32(p.g.V[i])*scale)
			m = float32(beta1*m) + float32(rest1*gs)
			v = float32(beta2*v) + float32(float32(rest2*gs)*gs)
			den := float32(float32(math.Sqrt(float64(v)))*invBias) + eps
			p.w.V[i], p.m.V[i], p.v.V[i] = float64(float32(w*decay)-float32(float32(step*m)/den)), float64(m), float64(v)
		}
		near.Check(t, p.name+": value", l.get(p.W).V, p.w.V, 0)
		near.Check(t, p.name+": first moment", l.get(p.M).V, p.m.V, 0)
		near.Check(t, p.name+": second moment", l.get(p.V).V, p.v.V, 0)
	}
}

// TestOptimNotFinite: one bad number anywhere, and nothing moves.
func TestOptimNotFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, bad := range []struct {
		name  string
		grad  float64
		at    int // parameter
		ce, d float64
	}{
		{"NaN gradient", nan, 7, 0, 0}, {"infinite gradient", inf, 1, 0, 0}, {"−infinite gradient", -inf, 5, 0, 0},
		{"NaN cross-entropy", 1, 0, nan, 0}, {"infinite divergence", 1, 0, 0, inf},
	} {
		t.Run(bad.name, func(t *testing.T) {
			l := newLab(t)
			params := l.model(1)
			g := &params[bad.at].g
			g.V[len(g.V)-1] = bad.grad
			params[bad.at].G = l.dense(tensor.F32, *g)
			table, n := l.table(params)
			before := memory(l, params)
			*l.rec() = Record{LR: .01, InvN: 1, Bias1: .1, Bias2: .05, MaxNorm: 1, CEWeight: 1, DWeight: 1, MaxLoss: 1, CE: bad.ce, D: bad.d}
			Verdict(l.op(), table, n)
			AdamW(l.op(), table, n, testAdamW)
			if r := l.rec(); r.Finite != 0 || r.Diverged != 0 {
				t.Errorf("finite %d, diverged %d", r.Finite, r.Diverged)
			}
			checkUnmoved(t, l, params, before)
		})
	}
}

// memory returns the bytes of values and moments.
func memory(l *lab, params []*trained) (all [][]byte) {
	for _, p := range params {
		all = append(all, l.bytes(p.W), l.bytes(p.M), l.bytes(p.V))
	}
	return all
}

// checkUnmoved: values and moments are those before, and the copies still empty.
func checkUnmoved(t *testing.T, l *lab, params []*trained, before [][]byte) {
	t.Helper()
	for i, b := range memory(l, params) {
		if !bytes.Equal(b, before[i]) {
			t.Errorf("%s: tensor %d moved", params[i/3].name, i%3)
		}
	}
	for _, p := range params {
		if !p.Copy.IsZero() {
			near.Check(t, p.name+": copy", l.get(p.Copy).V, ref.New(1, p.Copy.Cols).V, 0)
		}
	}
}

// TestOptimLimit: a finite loss above the limit moves nothing; at the limit, or without one, everything.
func TestOptimLimit(t *testing.T) {
	const ce, d, invN, ceWeight, dWeight = 12, 40, .125, .25, 3
	const loss = ceWeight*ce*invN + dWeight*d*invN // exact
	for _, c := range []struct {
		name     string
		limit    float64
		diverged int64
	}{
		{"just below", math.Nextafter(loss, 0), 1}, {"far below", .01, 1}, {"at the loss", loss, 0},
		{"just above", math.Nextafter(loss, 100), 0}, {"infinite", math.Inf(1), 0}, {"none", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			params := l.model(1)
			table, n := l.table(params)
			before := memory(l, params)
			*l.rec() = Record{LR: .01, InvN: invN, Bias1: .1, Bias2: .05, CEWeight: ceWeight, DWeight: dWeight, MaxLoss: c.limit, CE: ce, D: d}
			Verdict(l.op(), table, n)
			AdamW(l.op(), table, n, testAdamW)
			r := l.rec()
			contracttest.Cases(t, 1)
			if r.Loss != loss || r.Finite != 1 || r.Diverged != c.diverged {
				t.Errorf("loss %g, finite %d, diverged %d; want %g, 1, %d", r.Loss, r.Finite, r.Diverged, float64(loss), c.diverged)
			}
			if c.diverged == 1 {
				checkUnmoved(t, l, params, before)
				return
			}
			for i, b := range memory(l, params) {
				if bytes.Equal(b, before[i]) {
					t.Errorf("%s: tensor %d stays", params[i/3].name, i%3)
				}
			}
		})
	}
}

// TestOptimNothing: without parameters the verdict is about the loss alone.
func TestOptimNothing(t *testing.T) {
	l := newLab(t)
	*l.rec() = Record{MaxNorm: 1, GradNorm: 5}
	Verdict(l.op(), 0, 0)
	AdamW(l.op(), 0, 0, testAdamW)
	if r := l.rec(); r.GradNorm != 0 || r.Scale != 1 || r.Finite != 1 {
		t.Errorf("norm %g, scale %g, finite %d", r.GradNorm, r.Scale, r.Finite)
	}
}

func TestParamPieces(t *testing.T) {
	vector := func(ptr uint64, n int, d tensor.DType) Mat { return Mat{ptr, 1, n, n, d} }
	p := Trainable{W: vector(256, 40000, tensor.F32), G: vector(1<<20, 40000, tensor.F32), M: vector(2<<20, 40000, tensor.F32),
		V: vector(3<<20, 40000, tensor.F32), Copy: vector(4<<20, 40000, tensor.BF16), Decay: true}
	bare := p
	bare.Copy, bare.Decay = Mat{}, false
	got := ParamPieces([]Trainable{p, bare})
	if len(got) != 6 {
		t.Fatalf("%d pieces, want 6", len(got))
	}
	const off = 2 * paramPiece
	if want := (ParamPiece{256 + 4*off, 1<<20 + 4*off, 2<<20 + 4*off, 3<<20 + 4*off, 4<<20 + 2*off, 40000 - off, 1}); got[2] != want {
		t.Errorf("last piece of three: %+v, want %+v", got[2], want)
	}
	if got[3].Copy != 0 || got[4].Copy != 0 || got[3].Decay != 0 {
		t.Errorf("without copy: %+v, %+v", got[3], got[4])
	}
	defer func() {
		if recover() == nil {
			t.Error("a parameter whose gradient is shorter was accepted")
		}
	}()
	bare.G.Cols--
	ParamPieces([]Trainable{bare})
}
