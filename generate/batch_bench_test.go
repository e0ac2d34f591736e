package generate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device/cpu"
	"apr/generate"
	"apr/model/modeltest"
)

// BenchmarkEngine reports tokens/s of an engine with all slots busy, in float32 and from Q4_K_M as apr run computes it.
func BenchmarkEngine(b *testing.B) {
	for _, file := range []string{gosrc, gosrc + "-q4_k_m.gguf"} {
		for _, slots := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/%d", file[len("../testdata/models/"):], slots), func(b *testing.B) {
				_, f, m := modeltest.Load(b, file, cpu.Options{RoundActivations: true})
				o := generate.EngineOptions{Slots: slots, Capacity: 200, Vocab: f.Config.Vocab}
				requests := requestsOf(rand.New(rand.NewPCG(1, 2)), f.Config.Vocab, slots, 16, 1)
				for i := range requests {
					requests[i].Options = generate.Options{MaxTokens: 100, Temperature: .8, TopP: .95}
					requests[i].LogProbs = -1
				}
				tokens := 0
				for b.Loop() {
					e := generate.NewEngine(m, m.Device().NewStream(), o)
					err := e.InOrder(b.Context(), slots, func(i int) generate.Request { return requests[i] },
						func(_ int, _ *generate.Sequence, r generate.Result) error {
							tokens += len(r.IDs)
							return nil
						})
					if err != nil {
						b.Fatal(err)
					}
					e.Close()
				}
				b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
