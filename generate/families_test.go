package generate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
	"apr/modelfile"
)

// families returns the goldens of all families that are computed.
func families(t *testing.T) (dirs []string) {
	t.Helper()
	for _, kind := range []string{"families", "variants"} {
		all, err := filepath.Glob(filepath.Join("../testdata/golden", kind, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range all {
			if c, err := modelfile.ReadConfig(filepath.Join(dir, "config.json")); err != nil {
				t.Fatal(err)
			} else if c.NotComputed() == "" {
				dirs = append(dirs, dir)
			}
		}
	}
	if len(dirs) != 27 {
		t.Fatalf("%d goldens, want 27", len(dirs))
	}
	return dirs
}

// A greedy generation of every family gives the ids of transformers.
func TestFamiliesGreedy(t *testing.T) {
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			var golden struct {
				Prompt []int32 `json:"greedy_prompt"`
				Greedy []int32 `json:"greedy_ids"`
			}
			raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
			if err == nil {
				err = json.Unmarshal(raw, &golden)
			}
			if err != nil {
				t.Fatal(err)
			}
			f := modeltest.Open(t, dir)
			d := modeltest.CPU(t, cpu.Options{})
			m, err := model.LoadFrozen(d, f, device.StudentWeights)
			if err != nil {
				t.Fatal(err)
			}
			r, err := generate.Generate(t.Context(), m, d.NewStream(), golden.Prompt, greedy(len(golden.Greedy), f.Config.Vocab), nil)
			if err != nil || !slices.Equal(r.IDs, golden.Greedy) {
				t.Errorf("%v (%v), want %v", r.IDs, err, golden.Greedy)
			}
		})
	}
}

// longer is a model for longer sequences than its file says.
type longer struct{ *modelfile.Files }

func (l longer) Arch() arch.Config {
	c := l.Files.Arch()
	c.MaxPositions = 1 << 14
	return c
}

// Each component reaches the bytes that the record of a dry generation says, for every family: caches of windows, keys that
// layers share, and sequences that outgrow their frequencies.
func TestFamiliesDryGeneration(t *testing.T) {
	for _, dir := range families(t) {
		for _, n := range [][2]int{{12, 16}, {700, 3}} {
			t.Run(fmt.Sprintf("%s, %d tokens after %d", filepath.Base(dir), n[1], n[0]), func(t *testing.T) {
				contracttest.Cases(t, 1)
				f := longer{modeltest.Open(t, dir)}
				d := modeltest.CPU(t, cpu.Options{})
				o := greedy(n[1], f.Config.Vocab)
				r, err := generate.DryRun{Target: d.Target, Model: model.Describe(f), Component: device.StudentWeights, Prompt: n[0], Options: o}.Record()
				if err != nil {
					t.Fatal(err)
				}
				m, err := model.LoadFrozen(d, f, device.StudentWeights)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := generate.Generate(t.Context(), m, d.NewStream(), make([]int32, n[0]), o, nil); err != nil {
					t.Fatal(err)
				}
				_, held := d.Memory()
				held[device.Activations] += int64(4 * f.Config.Hidden) // of the position that a device works at early
				if !maps.Equal(r.Peak, held) {
					t.Errorf("planned %v\nheld    %v", r.Peak, held)
				}
			})
		}
	}
}
