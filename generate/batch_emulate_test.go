//go:build emulate

package generate_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/cuda/emulator"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
)

// On a GPU, where a pass has one shape, a text is the same alone, among neighbours, in any order and with any number of slots: for
// every family, in the types that training computes in.
func TestCUDATextsDoNotDependOnNeighbours(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := modeltest.Open(t, dir)
			d, err := cuda.Open(cuda.Options{Compute: cuda.BF16})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			requests := requestsOf(rng, f.Config.Vocab, 3, 6, 3)
			o := generate.EngineOptions{Slots: 1, Capacity: 10, Rows: 4, Vocab: f.Config.Vocab}
			var alone []written
			for _, r := range requests {
				alone = append(alone, write(t, m, o, []generate.Request{r}, []int{0})...)
			}
			o.Slots = 2 + rng.IntN(2)
			sameTexts(t, fmt.Sprintf("%d slots", o.Slots), write(t, m, o, requests, rng.Perm(len(requests))), alone)
		})
	}
}
