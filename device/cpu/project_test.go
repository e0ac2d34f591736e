package cpu_test

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/tensor"
)

// The time of moving 512 rows of logits to another vocabulary, of which every eighth column has two entries.
func BenchmarkProject(b *testing.B) {
	for _, n := range []int{1024, 32768} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d, err := cpu.New(cpu.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			s := d.NewStream()
			const rows = 512
			ints := func(v []int32) device.Tensor {
				t := d.Alloc("ints", device.Batch, tensor.I32, 1, len(v))
				s.UploadInts(t, v)
				return t
			}
			starts, ids, weights, at := []int32{0}, []int32{}, []float32{}, []int32{}
			for i := range n {
				ids, weights = append(ids, int32(i)), append(weights, 1)
				if i%8 == 0 {
					ids, weights = append(ids, int32((i+1)%n)), append(weights, 1)
				}
				starts = append(starts, int32(len(ids)))
			}
			for r := range rows {
				at = append(at, int32(r))
			}
			w := device.Projection{Teacher: n, Starts: ints(starts), IDs: ints(ids),
				Weights: d.Alloc("weights", device.Batch, tensor.F32, 1, len(weights))}
			s.Upload(w.Weights, weights)
			t, y, where := d.Alloc("t", device.Logits, tensor.F32, rows, n), d.Alloc("y", device.Logits, tensor.F32, rows, n),
				ints(at)
			b.ResetTimer()
			for range b.N {
				s.(device.Projector).Project(y, t, w, where, 1)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows/float64(n), "ns/id")
		})
	}
}
