//go:build emulate && !gpu

package bench_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/generate"
	"apr/model"
	"apr/modelfile"
)

// quantised is a small model in blocks.
func quantised(t *testing.T) *modelfile.Files {
	t.Helper()
	f, err := bench.RandomQuantised(small(t, 512, 512), 3, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCUDATileFailure: after an error in the middle of putting matrices into tiles, or of what was queued before it, nothing is
// computed with the matrices as if they were whole: the prompt has the bits that it had before, or an error is told.
func TestCUDATileFailure(t *testing.T) {
	for name, fail := range map[string]string{"within": "cuMemcpyDtoDAsync_v2:3=2", "before": "cuMemcpyDtoHAsync_v2:5=2"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("APR_EMULATOR_CC", "9.0")
			t.Setenv("APR_EMULATOR_FAIL", fail)
			d := openCUDA(t)
			defer d.Close()
			m, err := model.LoadFrozenAs(d, quantised(t), device.StudentWeights, device.Form{Blocks: true})
			if err != nil {
				t.Fatal(err)
			}
			s, o := d.NewStream(), generate.Options{MaxTokens: 4, RepeatPenalty: 1, Vocab: 512}
			long, told := prompt(t, m, s, 70, 0), 0 // too long for tiles
			for range 5 {
				if _, err := generate.Generate(t.Context(), m, s, []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, o, nil); err != nil {
					told++
				}
			}
			switch {
			case told == 0:
				t.Error("nothing failed")
			case told < 5:
				if after := prompt(t, m, s, 70, 0); !slices.Equal(after, long) {
					t.Errorf("a prompt gives other logits: relative distance %.3f", distance(after, long))
				}
			}
		})
	}
}

// TestCUDALoadFailure: a model does not load if a copy of its weights, norms or biases fails, and the device closes.
func TestCUDALoadFailure(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	const copies = 16 // and more bring the model's norms, biases and matrices
	f, failed := quantised(t), 0
	for _, call := range []string{"cuMemcpyHtoDAsync_v2", "cuEventSynchronize"} {
		for n := 1; n <= copies; n++ {
			t.Setenv("APR_EMULATOR_FAIL", fmt.Sprintf("%s:%d=2", call, n))
			findDriver(t)
			d, err := cuda.Open(cuda.Options{})
			if err != nil {
				failed++
				continue
			}
			_, err = model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
			if err != nil {
				failed++
			} else if call == "cuMemcpyHtoDAsync_v2" && n <= copies {
				t.Errorf("loaded, without copy %d", n)
			}
			done := make(chan error, 1)
			go func() { done <- d.Close() }()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatalf("%s, call %d: the device does not close", call, n)
			}
		}
	}
	if failed <= copies {
		t.Error("no wait failed")
	}
}
