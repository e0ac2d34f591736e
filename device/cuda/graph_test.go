//go:build emulate || gpu

package cuda_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
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

// TestReplayAs: a call whose key is known is not made again, and its operations read what is in memory now. It is
// made where the key is another one, where it takes temps itself, and where memory was given back or a bias
// changed since.
func TestReplayAs(t *testing.T) {
	findDriver(t)
	const n, cols = 3, 64
	d := open(t, cuda.Options{})
	defer d.Close()
	b := &few{d: d, s: d.NewStream().(*cuda.Stream), rng: rand.New(rand.NewPCG(4, 4))}
	w := d.Frozen(b.values(cols, cols, .3))
	bias := b.values(1, cols, 1)
	x, y := b.typed(tensor.BF16, n, cols, 1), b.typed(tensor.BF16, n, cols, 0)
	spare := b.typed(tensor.BF16, n, cols, 1)
	calls, wanted := 0, 0
	fresh, got, want := make([]float32, n*cols), make([]float32, n*cols), make([]float32, n*cols)
	check := func(what string, made bool, number int, temps bool, out device.Tensor) {
		t.Helper()
		for k := range fresh {
			fresh[k] = float32(b.rng.NormFloat64())
		}
		b.s.Upload(x, fresh)
		b.s.ReplayAs(device.ReplayKey{Of: w, Numbers: []int{number}, Tensors: []device.Tensor{x, out}}, func() {
			calls++
			if temps {
				defer b.s.Release(b.s.Temp("own", device.Scratch, tensor.BF16, n, cols))
			}
			b.s.MatMul(out, x, w, bias, false)
			b.s.Scale(out, out, float64(number))
		})
		if made {
			wanted++
		}
		if calls != wanted {
			t.Errorf("%s: the call was made %d times, want %d", what, calls, wanted)
			wanted = calls
		}
		if err := b.s.Download(got, out); err != nil {
			t.Fatal(err)
		}
		b.s.MatMul(out, x, w, bias, false)
		b.s.Scale(out, out, float64(number))
		if err := b.s.Download(want, out); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: other values than by single operations", what)
		}
		contracttest.Cases(t, 1)
	}
	check("the first time", true, 2, false, y)
	check("made anew, since the bias was copied before", true, 2, false, y)
	for range 4 {
		check("known", false, 2, false, y)
	}
	check("another number", true, 3, false, y)
	for range 3 {
		check("known", false, 3, false, y)
		check("known, by the arguments of another", false, 2, false, y)
	}
	d.Free(spare)
	check("memory was given back", true, 2, false, y)
	check("known again", false, 2, false, y)
	b.s.Upload(bias, fresh[:cols])
	check("the bias was uploaded", true, 2, false, y)
	check("and copied", true, 2, false, y)
	check("known again", false, 2, false, y)
	for range 3 {
		check("temps of its own", true, 4, true, y)
	}
	if d.Stats().Recalled == 0 {
		t.Error("nothing was counted")
	}
}
