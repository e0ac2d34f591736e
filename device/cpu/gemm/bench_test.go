package gemm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// shapes are those of tools/openblas/bench.c: forms with m, n, k.
func benchShapes() []problem {
	var list []problem
	add := func(f form, m, n, k int) { list = append(list, problem{form: f, m: m, n: n, k: k}) }
	for _, f := range forms {
		add(f, 512, 512, 512)
		add(f, 1024, 1024, 1024)
	}
	layer := func(rows, in, out int) {
		add(forms[0], rows, out, in)
		add(forms[1], rows, in, out)
		add(forms[2], out, in, rows)
	}
	for _, l := range [][2]int{{256, 512}, {256, 256}, {256, 1536}, {768, 256}, {128, 256}, {128, 128}, {128, 768}, {384, 128}} {
		layer(2048, l[0], l[1])
	}
	layer(512, 256, 4096)
	layer(512, 128, 4096)
	for _, f := range forms {
		add(f, 512, 2048, 2048)
		add(f, 512, 256, 2048)
		add(f, 2048, 2048, 1024)
	}
	add(forms[0], 1, 4096, 256)
	add(forms[0], 1, 4096, 4096)
	return list
}

// BenchmarkShapes reports GFLOP/s at the shapes of training; best is that of the fastest of several rounds, which other
// load on the machine disturbs least.
func BenchmarkShapes(b *testing.B) {
	for _, s := range benchShapes() {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%dx%dx%d/workers=%d", s.name, s.m, s.n, s.k, workers), func(b *testing.B) {
				e := newEngine(b, workers)
				p := newProblem(rand.New(rand.NewPCG(1, 1)), s.form, s.m, s.n, s.k, 0)
				flops := 2 * float64(s.m) * float64(s.n) * float64(s.k)
				repeat := 1 + int(5e7/flops)
				best := time.Duration(1 << 62)
				for b.Loop() {
					start := time.Now()
					for range repeat {
						switch p.name {
						case "NT":
							e.NT(p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, nil, p.c, p.ldc, false)
						case "NN":
							e.NN(p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.c, p.ldc, false)
						case "TN":
							e.TN(p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.c, p.ldc, false)
						}
					}
					best = min(best, time.Since(start))
				}
				b.ReportMetric(float64(repeat)*flops/best.Seconds()/1e9, "best-GFLOP/s")
			})
		}
	}
}
