package generate_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/dry"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
)

// The memory of pages, states, tables and ids is what the record of a dry engine says, for every family, and no part of a text takes more.
func TestEngineTakesWhatItsRecordSays(t *testing.T) {
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := modeltest.Open(t, dir)
			d := modeltest.CPU(t, cpu.Options{})
			o := generate.EngineOptions{Slots: 3, Capacity: 40, Vocab: f.Config.Vocab}
			r, err := generate.EngineDryRun{Target: d.Target, Model: model.Describe(f), Component: device.StudentWeights, Options: o, Score: true}.Record()
			if err != nil {
				t.Fatal(err)
			}
			m, err := model.LoadFrozen(d, f, device.StudentWeights)
			if err != nil {
				t.Fatal(err)
			}
			requests := requestsOf(rand.New(rand.NewPCG(5, 6)), f.Config.Vocab, 6, 30, 10)
			requests[0].Score = true
			write(t, m, o, requests, []int{0, 1, 2, 3, 4, 5})
			_, held := d.Memory()
			for _, c := range []device.Component{device.KVCache, device.Batch} {
				if held[c] != r.Peak[c] {
					t.Errorf("%s: planned %d, held %d", c, r.Peak[c], held[c])
				}
			}
			for c, n := range held {
				if n > r.Peak[c] {
					t.Errorf("%s: planned %d, held %d", c, r.Peak[c], n)
				}
			}
		})
	}
}

// An engine fits what its record needs and nothing less, and what a refusal says of the slots that fit is exact.
func TestEnginePlan(t *testing.T) {
	f := modeltest.Open(t, gosrc)
	budget := int64(0)
	run := generate.EngineDryRun{
		Target: func() dry.Target {
			return dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Keep: dry.As(tensor.BF16), Budget: budget}
		},
		Model: model.Describe(f), Component: device.StudentWeights, Options: generate.EngineOptions{Slots: 30, Capacity: 1000, Rows: 8, Vocab: f.Config.Vocab},
	}
	all, err := run.Plan()
	if err != nil {
		t.Fatal(err)
	}
	budget = all.Total()
	if _, err := run.Plan(); err != nil {
		t.Errorf("an engine that needs all there is: %v", err)
	}
	budget -= budget / 4
	_, err = run.Plan()
	var most int
	if _, scan := fmt.Sscanf(hint(err), "with --slots %d it fits", &most); scan != nil || fault.KindOf(err) != fault.Memory {
		t.Fatalf("%v, hint %q", err, hint(err))
	}
	for n, fits := range map[int]bool{most: true, most + 1: false} {
		run.Options.Slots = n
		if _, err := run.Plan(); (err == nil) != fits {
			t.Errorf("%d slots of at most %d: %v", n, most, err)
		}
	}
}
