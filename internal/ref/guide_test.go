package ref

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/internal/near"
)

// TestMix: three distributions with weights that sum to one are a distribution, and it is the sum of them.
func TestMix(t *testing.T) {
	logits := []Mat{{1, 3, []float64{1, 2, 3}}, {1, 3, []float64{300, -2, 0}}, {1, 3, []float64{0, 0, 0}}}
	weights := []float64{.5, .25, .25}
	const temperature = 2
	var y Mat
	for i, l := range logits {
		y = Mix(y, l, weights[i], temperature)
	}
	for c := range 3 {
		want := 0.0
		for i, l := range logits {
			want += weights[i] * math.Exp(LogSoftmax(l.V, temperature)[c])
		}
		near.CheckRel(t, "probability", []float64{math.Exp(y.V[c] / temperature)}, []float64{want}, 1e-12)
	}
}

// TestSquaredErrorGradient compares the gradient with central differences.
func TestSquaredErrorGradient(t *testing.T) {
	u, target := Mat{2, 3, []float64{.1, -.4, 2, .3, .2, -1}}, Mat{2, 3, []float64{1, .4, 0, -.3, .1, -2}}
	const weight, invN, h = .7, 1. / 3, 1e-6
	_, grad := SquaredError(u, target, weight, invN)
	for i := range u.V {
		at := func(d float64) float64 {
			moved := u.Clone()
			moved.V[i] += d
			sum, _ := SquaredError(moved, target, weight, invN)
			return weight * invN * sum
		}
		near.Check(t, "gradient", []float64{grad.V[i]}, []float64{(at(h) - at(-h)) / (2 * h)}, 1e-8)
	}
}

// TestHiddenErrorGradient compares both gradients with central differences.
func TestHiddenErrorGradient(t *testing.T) {
	x := Mat{2, 3, []float64{.1, -.4, 2, .3, .2, -1}}
	target := Mat{2, 2, []float64{1, .4, -.3, .1}}
	p := Mat{2, 3, []float64{.5, -.2, .3, 1, .1, -.7}}
	const weight, invN, eps, h = .7, 1. / 3, 1e-6, 1e-6
	_, dx, dp := HiddenError(x, target, p, weight, invN, eps)
	for _, c := range []struct{ m, d Mat }{{x, dx}, {p, dp}} {
		for i := range c.m.V {
			at := func(d float64) float64 {
				was := c.m.V[i]
				c.m.V[i] += d
				defer func() { c.m.V[i] = was }()
				sum, _, _ := HiddenError(x, target, p, weight, invN, eps)
				return weight * invN * sum
			}
			near.Check(t, "gradient", []float64{c.d.V[i]}, []float64{(at(h) - at(-h)) / (2 * h)}, 1e-8)
		}
	}
}

// TestAttentionDivergenceGradient compares the gradients of q, k and sinks with central differences: other numbers of heads and widths
// than the teacher's, documents, windows, soft-caps, sinks of both or of the student alone, and rows that do not count.
func TestAttentionDivergenceGradient(t *testing.T) {
	const weight, invN, h, n = .7, 1. / 5, 1e-5, 6
	rng := rand.New(rand.NewPCG(3, 4))
	random := func(rows, cols int) Mat {
		m := New(rows, cols)
		for i := range m.V {
			m.V[i] = rng.NormFloat64()
		}
		return m
	}
	side := func(heads, kv, d, window int, limit float64, sinks bool, first []int) Map {
		m := Map{Q: random(2*n, heads*d), K: random(2*n, kv*d), First: first, Attn: device.Attn{
			Batch: 2, QLen: n, KLen: n, KStride: n, Heads: heads, KVHeads: kv, HeadDim: d, Window: window, Cap: limit, Scale: .8}}
		if sinks {
			m.Sinks = random(1, heads).V
		}
		return m
	}
	first := []int{0, 0, 0, 3, 3, 5, 0, 1, 1, 1, 4, 4}
	counts := []bool{true, true, false, true, true, true, false, true, true, true, true, false}
	for i, c := range []struct{ s, t Map }{
		{side(2, 1, 2, 0, 0, false, nil), side(3, 3, 3, 0, 0, false, nil)},
		{side(4, 2, 2, 3, 1.5, false, first), side(2, 1, 4, 2, 2, false, first)},
		{side(2, 2, 2, 0, 0, true, first), side(3, 1, 2, 4, 0, true, first)},
		{side(2, 1, 3, 4, 0, true, nil), side(2, 2, 2, 4, 0, false, nil)},
	} {
		sum, dq, dk, db := AttentionDivergence(c.s, c.t, counts, weight, invN)
		if !(sum > 0) {
			t.Errorf("%d: divergence %g", i, sum)
		}
		sinks := Mat{1, len(c.s.Sinks), c.s.Sinks}
		for _, of := range []struct {
			name string
			m, d Mat
		}{{"q", c.s.Q, dq}, {"k", c.s.K, dk}, {"sinks", sinks, db}} {
			for j := range of.m.V {
				at := func(d float64) float64 {
					was := of.m.V[j]
					of.m.V[j] += d
					defer func() { of.m.V[j] = was }()
					sum, _, _, _ := AttentionDivergence(c.s, c.t, counts, weight, invN)
					return weight * invN * sum
				}
				near.Check(t, fmt.Sprintf("%d: gradient of %s", i, of.name), []float64{of.d.V[j]}, []float64{(at(h) - at(-h)) / (2 * h)}, 1e-8)
			}
		}
		same, dq, _, _ := AttentionDivergence(c.s, c.s, counts, weight, invN)
		near.Check(t, "divergence from itself", []float64{same, Norm(dq)}, []float64{0, 0}, 1e-12)
	}
}
