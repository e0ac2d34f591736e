//go:build emulate

package generate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/cuda/emulator"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
)

// TestCUDATogetherIsReplayed: after a few passes in lock-step beside a device the body of each is one launch, with the bits of single
// launches. Alone they are launched one by one: see model.NewLockstep.
func TestCUDATogetherIsReplayed(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	f := modeltest.Open(t, "../testdata/golden/qwen2/tied_gqa/student")
	requests := ownRequests(rand.New(rand.NewPCG(3, 9)), f.Config.Vocab, 5)
	for i := range requests {
		requests[i].MaxTokens, requests[i].Stop = 6, nil
	}
	write := func(o cuda.Options) ([]generate.Text, cuda.Stats) {
		d, err := cuda.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		m, s := model.NewTrainable(d, f.Config), d.NewStream()
		if err := m.LoadWeights(s, f); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		second, err := d.Beside(d.Alloc("room", device.Besides, tensor.U8, 1, 160<<20))
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		w := generate.NewTogether(m.Beside(second), second.NewStream(), 5, 16, f.Config.Vocab)
		defer w.Free()
		texts, err := w.Write(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		return texts, second.(*cuda.Device).Stats()
	}
	for _, c := range []cuda.Compute{cuda.BF16, cuda.F32} {
		want, one := write(cuda.Options{Compute: c, NoGraphs: true})
		got, graph := write(cuda.Options{Compute: c})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: replayed\n%v, one by one\n%v", c, got, want)
		}
		if one.Graphs != 0 || graph.Graphs < 6 || graph.Launches*2 > one.Launches {
			t.Errorf("%v: %d graphs and %d launches, %d launches without", c, graph.Graphs, graph.Launches, one.Launches)
		}
		contracttest.Cases(t, 1)
	}
}
