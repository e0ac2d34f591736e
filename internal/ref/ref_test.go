package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/internal/near"
)

// random returns a matrix of normal values.
func random(rng *rand.Rand, rows, cols int) Mat {
	m := New(rows, cols)
	for i := range m.V {
		m.V[i] = rng.NormFloat64()
	}
	return m
}

// differences returns the central differences of f over the values of x, which it changes and restores.
func differences(x Mat, f func() float64) []float64 {
	const h = 1e-5
	out := make([]float64, len(x.V))
	for i, v := range x.V {
		x.V[i] = v + h
		up := f()
		x.V[i] = v - h
		out[i] = (up - f()) / (2 * h)
		x.V[i] = v
	}
	return out
}

// fdTol is the truncation and cancellation error of central differences at h = 1e-5 for values around 1.
const fdTol = 1e-7

// along returns ⟨y, dy⟩: its gradient over an input is the backward of dy.
func along(y, dy Mat) float64 { return dot(y.V, dy.V) }

func TestBackwardsAreDerivatives(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	check := func(name string, got, x Mat, f func() float64) {
		t.Helper()
		near.CheckRel(t, name, got.V, differences(x, f), fdTol)
	}

	x, w, dy := random(rng, 3, 5), random(rng, 1, 5), random(rng, 3, 5)
	f := func() float64 { y, _ := RMSNorm(x, w, 1e-3); return along(y, dy) }
	_, rstd := RMSNorm(x, w, 1e-3)
	dx, dw := RMSNormBackward(dy, x, rstd, w)
	check("rmsnorm dx", dx, x, f)
	check("rmsnorm dw", dw, w, f)

	w, b := random(rng, 4, 5), random(rng, 1, 4)
	dy = random(rng, 3, 4)
	f = func() float64 { return along(Linear(x, w, b), dy) }
	dx, dw, db := LinearBackward(dy, x, w)
	check("linear dx", dx, x, f)
	check("linear dw", dw, w, f)
	check("linear dbias", db, b, f)

	ids := []int{2, 0, 2}
	dy = random(rng, 3, 5)
	grad := New(4, 5)
	EmbedBackward(grad, ids, dy)
	check("embed", grad, w, func() float64 { return along(Embed(w, ids), dy) })

	gu, dm := random(rng, 2, 6), random(rng, 2, 3)
	wide, dwide := random(rng, 4, 12), random(rng, 4, 6)
	for i := range wide.V {
		wide.V[i] *= 7 // on both sides of the clamps, and not on them
	}
	for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid} {
		check(act.String(), GLUBackward(dm, gu, act), gu, func() float64 { return along(GLU(gu, act), dm) })
		check(act.String()+", wide", GLUBackward(dwide, wide, act), wide, func() float64 { return along(GLU(wide, act), dwide) })
	}
	x, dy = random(rng, 3, 8), random(rng, 3, 8)
	for _, w := range []Mat{random(rng, 1, 4), {}} {
		_, rstd := HeadNorm(x, w, 4, 1e-3)
		dx, dw := HeadNormBackward(dy, x, rstd, w, 4)
		f := func() float64 { y, _ := HeadNorm(x, w, 4, 1e-3); return along(y, dy) }
		check("head norm dx", dx, x, f)
		if w.V != nil {
			check("head norm dw", dw, w, f)
		}
	}

	rot := device.Rotary{HeadDim: 4, Table: &device.Frequencies{Inv: []float64{.3}, Factor: 1.2}, SeqLen: 3, Offset: 5, QBeta: .4, QLength: 2}
	x, dy = random(rng, 6, 8), random(rng, 6, 8)
	back := rot
	back.Inverse = true
	check("rotary", Rotate(dy, back, nil), x, func() float64 { return along(Rotate(x, rot, nil), dy) })
	at := []int{0, 1, 2, 0, 7, 8}
	check("rotary at positions", Rotate(dy, back, at), x, func() float64 { return along(Rotate(x, rot, at), dy) })
}

func TestAttentionBackwardIsDerivative(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, tt := range []struct {
		name string
		a    device.Attn
		docs []int
	}{
		{"training", device.Attn{Batch: 2, QLen: 5, KLen: 5, KStride: 5, Heads: 4, KVHeads: 2, HeadDim: 6}, nil},
		{"cache", device.Attn{Batch: 2, QLen: 2, KLen: 5, QOffset: 3, KStride: 7, Heads: 3, KVHeads: 1, HeadDim: 4}, nil},
		{"window", device.Attn{Batch: 2, QLen: 5, KLen: 5, KStride: 5, Heads: 2, KVHeads: 2, HeadDim: 4, Window: 2, Scale: .9}, nil},
		{"cap", device.Attn{Batch: 1, QLen: 4, KLen: 4, KStride: 4, Heads: 2, KVHeads: 1, HeadDim: 4, Cap: 1.5, Scale: 1}, nil},
		{
			"documents", device.Attn{Batch: 2, QLen: 4, KLen: 6, QOffset: 2, KStride: 6, Heads: 1, KVHeads: 1, HeadDim: 4, Window: 5},
			[]int{0, 1, 4, 4, -1, 3, 3, 9},
		},
	} {
		a := tt.a
		q, do := random(rng, a.Batch*a.QLen, a.Heads*a.HeadDim), random(rng, a.Batch*a.QLen, a.Heads*a.HeadDim)
		k, v := random(rng, a.Batch*a.KStride, a.KVHeads*a.HeadDim), random(rng, a.Batch*a.KStride, a.KVHeads*a.HeadDim)
		f := func() float64 { o, _ := Attention(q, k, v, a, tt.docs, nil); return along(o, do) }
		o, _ := Attention(q, k, v, a, tt.docs, nil)
		dq, dk, dv := AttentionBackward(do, o, q, k, v, a, tt.docs, nil)
		near.CheckRel(t, tt.name+" dq", dq.V, differences(q, f), fdTol)
		near.CheckRel(t, tt.name+" dk", dk.V, differences(k, f), fdTol)
		near.CheckRel(t, tt.name+" dv", dv.V, differences(v, f), fdTol)

		b := random(rng, 1, a.Heads)
		f = func() float64 { o, _ := Attention(q, k, v, a, tt.docs, b.V); return along(o, do) }
		o, _ = Attention(q, k, v, a, tt.docs, b.V)
		dq, dk, dv = AttentionBackward(do, o, q, k, v, a, tt.docs, b.V)
		near.CheckRel(t, tt.name+" with sinks dq", dq.V, differences(q, f), fdTol)
		near.CheckRel(t, tt.name+" with sinks dk", dk.V, differences(k, f), fdTol)
		near.CheckRel(t, tt.name+" with sinks dv", dv.V, differences(v, f), fdTol)
		near.CheckRel(t, tt.name+" sinks", SinkGrad(do, o, q, k, a, tt.docs, b.V).V, differences(b, f), fdTol)
	}
}

// TestAttentionByHand: one head of width 1; the second query sees scores 0 and ln 3.
func TestAttentionByHand(t *testing.T) {
	a := device.Attn{Batch: 1, QLen: 2, KLen: 2, KStride: 2, Heads: 1, KVHeads: 1, HeadDim: 1}
	o, lse := Attention(Of(2, 1, []float64{1, 1}), Of(2, 1, []float64{0, math.Log(3)}), Of(2, 1, []float64{4, 8}), a, nil, nil)
	near.Check(t, "o", o.V, []float64{4, 7}, 1e-15)
	near.Check(t, "lse", lse.V, []float64{0, math.Log(4)}, 1e-15)
}

// TestRotateByHand: width 4, θ = 100, so the pairs (0,2) and (1,3) turn by pos and pos/10.
func TestRotateByHand(t *testing.T) {
	x := Of(2, 4, []float64{1, 0, 0, 1, 1, 0, 0, 1})
	y := Rotate(x, device.Rotary{HeadDim: 4, Table: &device.Frequencies{Inv: []float64{1, .1}}, SeqLen: 1, Offset: 2}, nil)
	want := []float64{math.Cos(2), -math.Sin(.2), math.Sin(2), math.Cos(.2)}
	near.Check(t, "row 0", y.Row(0), want, 1e-15)
	near.Check(t, "row 1, the next sequence", y.Row(1), want, 1e-15)
}

func TestClipAndAdamW(t *testing.T) {
	g := Of(1, 2, []float64{3, 4})
	near.Check(t, "norm and scales", []float64{Norm(g, Of(1, 1, []float64{12})), ClipScale(5, 0), ClipScale(0.5, 1), ClipScale(4, 2)},
		[]float64{13, 1, 1, 2 / (4 + 1e-6)}, 1e-15)
	// The first step moves by lr·sign(g) whatever the size of g, after the decay by 1−lr·wd.
	a := device.AdamW{Beta1: .9, Beta2: .95, WeightDecay: .1}
	s := device.Scalars{LR: .01, Scale: .5, BiasCorr1: .1, BiasCorr2: .05}
	for _, decay := range []bool{false, true} {
		w, m, v := Of(1, 2, []float64{1, 1}), New(1, 2), New(1, 2)
		AdamW(w, g, m, v, decay, a, s)
		want := 1 - .01
		if decay {
			want -= .001
		}
		near.Check(t, "w", w.V, []float64{want, want}, 1e-15)
		near.Check(t, "m", m.V, []float64{.15, .2}, 1e-15)
		near.Check(t, "v", v.V, []float64{.05 * 2.25, .05 * 4}, 1e-15)
	}
}

func TestArgMaxTakesTheLowest(t *testing.T) {
	got := ArgMax(Of(3, 3, []float64{1, 2, 2, 5, 5, 5, -3, -2, -1}))
	if got[0] != 1 || got[1] != 0 || got[2] != 2 {
		t.Errorf("got %v, want [1 0 2]", got)
	}
}
