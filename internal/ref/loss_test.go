package ref

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/internal/near"
)

// specs are all divergences at two temperatures, mixed with cross-entropy and alone.
func specs() []device.LossSpec {
	var out []device.LossSpec
	for _, d := range []struct {
		kind device.Divergence
		beta []float64
	}{
		{device.ForwardKL, []float64{0}}, {device.ReverseKL, []float64{0}}, {device.JSD, []float64{0, .1, .5, 1}},
		{device.TVD, []float64{0}}, {device.SkewForward, []float64{0, .1, .7}}, {device.SkewReverse, []float64{0, .1, .7}},
	} {
		for _, beta := range d.beta {
			for _, at := range [][2]float64{{.5, 2}, {1, 1}, {1, .7}} {
				out = append(out, device.LossSpec{Alpha: at[0], Temperature: at[1], Beta: beta, Divergence: d.kind})
			}
		}
	}
	return append(out, device.LossSpec{Temperature: 1})
}

func TestLossGradientIsDerivative(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, spec := range specs() {
		z, teacher := random(rng, 1, 7), random(rng, 1, 7)
		got := LossGradAt(z.V, teacher.V, 3, spec)
		want := differences(z, func() float64 { return LossAt(z.V, teacher.V, 3, spec).Loss })
		near.CheckRel(t, fmt.Sprintf("%+v", spec), got, want, fdTol)

		spec.Cap = 1.5
		got = LossGradAt(SoftCap(z, spec.Cap).V, teacher.V, 3, spec)
		want = differences(z, func() float64 { return LossAt(SoftCap(z, spec.Cap).V, teacher.V, 3, spec).Loss })
		near.CheckRel(t, fmt.Sprintf("%+v", spec), got, want, fdTol)
	}
}

func TestLossKnownAnswers(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	uniform := make([]float64, 4)
	for _, spec := range specs() {
		name := fmt.Sprintf("%+v", spec)
		z, teacher := random(rng, 1, 9), random(rng, 1, 9)
		same := LossAt(z.V, z.V, 0, spec)
		near.Check(t, name+": z = t", []float64{same.D}, []float64{0}, 1e-15)
		sum := 0.0
		for _, g := range LossGradAt(z.V, teacher.V, 1, spec) {
			sum += g
		}
		near.Check(t, name+": gradient sums to", []float64{sum}, []float64{0}, 1e-14)

		shifted := z.Clone()
		for i := range shifted.V {
			shifted.V[i] += 1e4
		}
		near.Check(t, name+": constant added", []float64{LossAt(shifted.V, teacher.V, 1, spec).Loss},
			[]float64{LossAt(z.V, teacher.V, 1, spec).Loss}, 1e-10)
	}
	ce := device.LossSpec{Temperature: 1}
	near.Check(t, "uniform cross-entropy", []float64{LossAt(uniform, nil, 2, ce).Loss}, []float64{math.Log(4)}, 1e-15)
	near.Check(t, "uniform gradient", LossGradAt(uniform, nil, 2, ce), []float64{.25, .25, -.75, .25}, 1e-15)

	p := LossAt(uniform, []float64{1, 2, 3, 4}, 0, device.LossSpec{Alpha: 1, Temperature: 2})
	near.Check(t, "KL to uniform", []float64{p.D}, []float64{math.Log(4) - p.Entropy}, 1e-15)
}

// TestLossByHand: p = (¼,¾), Q = (½,½), each divergence written out.
func TestLossByHand(t *testing.T) {
	lp, lq := []float64{math.Log(.25), math.Log(.75)}, []float64{math.Log(.5), math.Log(.5)}
	term := func(p, q float64) float64 { return p * math.Log(p/q) }
	for _, tt := range []struct {
		kind device.Divergence
		beta float64
		want float64
	}{
		{device.ForwardKL, 0, term(.25, .5) + term(.75, .5)},
		{device.ReverseKL, 0, term(.5, .25) + term(.5, .75)},
		{device.JSD, .2, .2*(term(.25, .45)+term(.75, .55)) + .8*(term(.5, .45)+term(.5, .55))},
		{device.TVD, 0, .25},
		{device.SkewForward, .2, term(.25, .45) + term(.75, .55)},
		{device.SkewReverse, .2, term(.5, .3) + term(.5, .7)},
	} {
		got := Divergence(lp, lq, device.LossSpec{Temperature: 1, Beta: tt.beta, Divergence: tt.kind})
		near.Check(t, fmt.Sprint(tt.kind), []float64{got}, []float64{tt.want}, 1e-15)
	}
}

// TestLossExtremes: probabilities of zero, by underflow or by a logit of −∞, make no NaN.
func TestLossExtremes(t *testing.T) {
	inf := math.Inf(1)
	for _, spec := range specs() {
		for name, pair := range map[string][2][]float64{
			"underflow of both": {{0, -1e4, -2e4}, {0, -3e4, -1e4}},
			"teacher's −∞":      {{0, -1, 2}, {0, -inf, 1}},
		} {
			if kindOf(spec) == device.ReverseKL && name == "teacher's −∞" || spec.Beta == 0 && spec.Divergence == device.SkewReverse {
				continue // truly infinite
			}
			p := LossAt(pair[0], pair[1], 0, spec)
			near.Check(t, fmt.Sprintf("%s %+v loss", name, spec), []float64{p.Loss}, []float64{p.Loss}, 0)
			g := LossGradAt(pair[0], pair[1], 0, spec)
			near.Check(t, fmt.Sprintf("%s %+v gradient", name, spec), g, g, 0)
		}
	}
}
