//go:build gpu || emulate

package distill

import (
	"bytes"
	"context"
	"testing"

	"apr/device/cuda"
	"apr/internal/contracttest"
	runlog "apr/run/log"
)

// TestCUDAOwnRows: on a GPU the sampler and the step agree as far as bfloat16 allows, by either estimator, and as far
// as float32 does in float32; the same run gives the same student again.
func TestCUDAOwnRows(t *testing.T) {
	openEmulator(t)
	for _, v := range []struct {
		compute            cuda.Compute
		sampled            bool
		mean, nearly, most float64
		times              int
	}{{cuda.F32, false, 1e-5, 1e-4, 1e-4, 1}, {cuda.BF16, true, .01, .1, 1, 2}} {
		var students [][]byte
		for range v.times {
			c := ownConfig(t)
			c.Steps, c.OnPolicy.MaxTokens, c.OnPolicy.Sampled, c.ValFraction = 1, 4, v.sampled, 0
			c.Options = optionsOf(c)
			d, err := cuda.Open(cuda.Options{Compute: v.compute})
			if err != nil {
				t.Fatal(err)
			}
			q := &quiet{}
			r, err := Start(context.Background(), c, d, q, func(*runlog.Manifest) {})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Execute(context.Background()); err != nil {
				t.Fatal(err)
			}
			for _, s := range q.steps {
				o := s.OnPolicy
				if o == nil || !(float64(o.Off) <= v.mean) || !(float64(o.Off999) <= v.nearly) || !(float64(o.OffMost) <= v.most) {
					t.Errorf("%v, step %d: %+v", v.compute, s.Step, o)
				}
			}
			students = append(students, studentBytes(t, c))
			r.Close()
			d.Close()
		}
		if !bytes.Equal(students[0], students[len(students)-1]) {
			t.Errorf("%v: another student the second time", v.compute)
		}
		contracttest.Cases(t, v.times)
	}
}
