package vec

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkLoops measures each loop on rows that stay in the first-level cache, in nanoseconds for each element.
func BenchmarkLoops(b *testing.B) {
	const n = 1024
	r := &arrays{rng: rand.New(rand.NewPCG(1, 1))}
	c, d, e, f := r.normal(n), r.normal(n), r.normal(n), r.normal(n)
	a, sum := r.normal(n), r.make(n, func() float32 { return 0 }) // outputs
	z, t := r.logits(n), r.logits(n)
	v := r.make(n, r.rng.Float32)
	cos, sin := r.normal(32), r.normal(32)
	opt := AdamW{Decay: 1, Beta1: 0.9, Rest1: 0.1, Beta2: 0.95, Rest2: 0.05, Scale: 1, InvBias: 1, Eps: 1e-8}
	cen := centre(z, t, 1)
	mix := Mix{Beta: 0.5, DP: 0.5, DQ: 0.5, HLog: 0.5}
	half := make([]byte, 2*n)
	loops := []struct {
		name string
		run  func(i ISA)
	}{
		{"Add", func(i ISA) { i.Add(sum, c) }},
		{"Dot", func(i ISA) { i.Dot(a, c) }},
		{"SumSquares", func(i ISA) { i.SumSquares(a) }},
		{"AddSumSquares", func(i ISA) { i.AddSumSquares(a, c, d) }},
		{"NormScale", func(i ISA) { i.NormScale(a, c, d, 0.5) }},
		{"NormGrad", func(i ISA) { i.NormGrad(a, sum, d, e, f, 0.5, 0.1) }},
		{"SiluMul", func(i ISA) { i.SiluMul(a, c, d) }},
		{"SiluMulGrad", func(i ISA) { i.SiluMulGrad(a, sum, d, c, f) }},
		{"Rotate", func(i ISA) { i.Rotate(sum, cos, sin, n/64) }},
		{"Max", func(i ISA) { i.Max(z) }},
		{"Index", func(i ISA) { i.Index(z, 1e9) }},
		{"ExpSum", func(i ISA) { i.ExpSum(a, z, 10) }},
		{"SoftmaxGrad", func(i ISA) { copy(a, z); i.SoftmaxGrad(a, sum, 0.1, 10, 0.1) }},
		{"LossSums T=1", func(i ISA) { i.LossSums(z, t, cen.MZ, cen.MT, 1) }},
		{"LossSums T=2", func(i ISA) { i.LossSums(z, t, cen.MZ, cen.MT, 0.5) }},
		{"LossGrad T=1", func(i ISA) { i.LossGrad(a, z, t, cen.MZ, cen.MT, 1, 1, 1, 1) }},
		{"LossGrad T=2", func(i ISA) { i.LossGrad(a, z, t, cen.MZ, cen.MT, 0.5, 1, 1, 1) }},
		{"ReverseTerms", func(i ISA) { i.ReverseTerms(a, z, t, &cen) }},
		{"MixTerms", func(i ISA) { i.MixTerms(a, z, t, &cen, &mix) }},
		{"DivGrad", func(i ISA) { i.DivGrad(a, z, t, &cen, 1, 1, 1) }},
		{"AdamW", func(i ISA) { i.AdamW(a, c, d, v, &opt) }},
		{"WidenBF16", func(i ISA) { i.WidenBF16(a, half) }},
		{"WidenF16", func(i ISA) { i.WidenF16(a, half) }},
	}
	for _, loop := range loops {
		for _, isa := range Available() {
			b.Run(fmt.Sprintf("%s/%v", loop.name, isa), func(b *testing.B) {
				for b.Loop() {
					loop.run(isa)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
	}
}
