//go:build gpu || emulate

package prune

import (
	"maps"
	"math"
	"slices"
	"testing"

	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/model/modeltest"
)

// cudaTolerance is of the largest value of a list of importance; 9.1e-7 was seen of float32, 3.9e-2 of bfloat16.
var cudaTolerance = map[cuda.Compute]float64{cuda.F32: 1e-5, cuda.BF16: 8e-2}

// narrow are the fixtures that are also computed in bfloat16: one for each kind of layer.
var narrow = []string{"llama", "olmo2", "gemma4_ple", "gemma4_moe", "gpt_oss", "qwen3_5_text"}

// A GPU measures what the CPU measures, in all families.
func TestCUDAMeasures(t *testing.T) {
	openEmulator(t)
	all := fixtures(t)
	delete(all, "qwen2") // large for an emulated card
	worst := map[cuda.Compute]float64{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for compute, tolerance := range cudaTolerance {
			if compute == cuda.BF16 && !slices.Contains(narrow, name) {
				continue
			}
			t.Run(name+" "+compute.String(), func(t *testing.T) {
				contracttest.Cases(t, 1)
				d, err := cuda.Open(cuda.Options{Compute: compute})
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				f := modeltest.Open(t, all[name])
				want, got := measured(t, testDevice(t), f), measured(t, d, f)
				c := f.Config
				lists := [][2][]float64{{got.Layers, want.Layers}, {got.channels(c, orAll(nil, len(c.Layers))), want.channels(c, orAll(nil, len(c.Layers)))}}
				for i := range c.Layers {
					lists = append(lists, [2][]float64{got.Neurons[i], want.Neurons[i]}, [2][]float64{got.Heads[i], want.Heads[i]})
					if compute == cuda.F32 { // of 16 bits a choice of experts may fall otherwise
						lists = append(lists, [2][]float64{got.Experts[i], want.Experts[i]})
					}
				}
				for k, pair := range lists {
					e := apart(pair[0], pair[1])
					if worst[compute] = max(worst[compute], e); !(e <= tolerance) {
						t.Errorf("list %d: %.2g of the largest", k, e)
					}
				}
			})
		}
	}
	t.Logf("largest differences: %v", worst)
}

// apart is the largest difference relative to the largest value.
func apart(got, want []float64) float64 {
	d, largest := 0.0, 0.0
	if len(got) != len(want) {
		return math.Inf(1)
	}
	for i := range got {
		d, largest = max(d, math.Abs(got[i]-want[i])), max(largest, math.Abs(want[i]))
	}
	if largest == 0 {
		return d
	}
	return d / largest
}
