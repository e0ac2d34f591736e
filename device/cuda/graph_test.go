//go:build emulate || gpu

package cuda_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestReplay: collected operations have the bits of single ones where products change their matrix, tensors their
// place, and where something that no graph has, or another stream, comes between.
func TestReplay(t *testing.T) {
	findDriver(t)
	const n, cols = 3, 64
	run := func(graphs bool) (all [][]float32, st cuda.Stats) {
		d := open(t, cuda.Options{NoGraphs: !graphs})
		defer d.Close()
		b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(4, 4))}
		other := d.NewStream()
		w := []device.Weight{d.Frozen(b.values(cols, cols, .3)), d.Frozen(b.values(cols, cols, .3))}
		x, z := b.typed(tensor.BF16, n, cols, 1), []device.Tensor{b.typed(tensor.BF16, n, cols, 1), b.typed(tensor.BF16, n, cols, 1)}
		y := []device.Tensor{b.typed(tensor.BF16, n, cols, 0), b.typed(tensor.BF16, n, cols, 0)}
		fresh := make([]float32, n*cols)
		for i := range 26 {
			out := y[i%2]
			b.s.Replay(func() {
				b.s.Add(x, z[i/5%2])
				b.s.MatMul(out, x, w[i/3%2], device.Tensor{}, false)
				switch {
				case i >= 8 && i < 16: // in memory that the collected operations read
					for k := range fresh {
						fresh[k] = float32(k%7 + i)
					}
					b.s.Upload(x, fresh)
				case i >= 16 && i < 22:
					other.Scale(x, out, 1/float64(i))
				}
				b.s.Scale(out, out, .25)
				b.s.Add(x, out)
			})
			got := make([]float32, n*cols)
			if err := b.s.Download(got, out); err != nil {
				t.Fatal(err)
			}
			all = append(all, got)
		}
		return all, d.Stats()
	}
	want, none := run(false)
	got, st := run(true)
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("replay %d differs", i)
		}
	}
	if none.Graphs != 0 || st.Graphs < 6 || st.GraphSets == 0 {
		t.Errorf("%d graphs without, %d with, %d kernels set", none.Graphs, st.Graphs, st.GraphSets)
	}
}
