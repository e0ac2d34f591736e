package generate_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
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

// TestPlan: a generation fits what its record needs and nothing less. What it is told of the tokens that fit is exact: one more does
// not.
func TestPlan(t *testing.T) {
	f := modeltest.Open(t, gosrc)
	budget := int64(0)
	run := generate.DryRun{
		Target: func() dry.Target {
			return dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Keep: dry.As(tensor.BF16), Budget: budget}
		},
		Model: model.Describe(f), Component: device.StudentWeights, Prompt: 700, Options: greedy(1000, f.Config.Vocab),
	}
	all, err := run.Plan() // of an unknown budget
	if err != nil {
		t.Fatal(err)
	}
	if got, want := all.Static[device.KVCache], int64(len(f.Config.Layers)*1700*2*f.Config.Layers[0].Attn.KVDim()*2); got != want {
		t.Errorf("a cache of %d bytes for 1700 positions, want %d", got, want)
	}
	budget = all.Total()
	if _, err := run.Plan(); err != nil {
		t.Errorf("a generation that needs all there is: %v", err)
	}
	budget--
	_, err = run.Plan()
	if fault.KindOf(err) != fault.Memory {
		t.Fatalf("one byte too few: %v", err)
	}
	var most int
	if _, err := fmt.Sscanf(hint(err), "with --max-tokens %d it fits", &most); err != nil {
		t.Fatalf("hint %q", hint(err))
	}
	contracttest.Cases(t, 3)
	for n, fits := range map[int]bool{most: true, most + 1: false} {
		run.Options.MaxTokens = n
		if _, err := run.Plan(); (err == nil) != fits {
			t.Errorf("%d tokens of at most %d: %v", n, most, err)
		}
	}
	budget = all.Static[device.StudentWeights]
	if _, err = run.Plan(); fault.KindOf(err) != fault.Memory || !strings.Contains(hint(err), "not even one token fits: a shorter prompt, or --backend cpu") {
		t.Errorf("room for weights alone: %v", err)
	}
	budget--
	if _, err = run.Plan(); !strings.HasPrefix(hint(err), "the weights alone are ") {
		t.Errorf("less than the weights: %v", hint(err))
	}
	for _, row := range []string{"weights", "key-value cache", "total", "available"} {
		if !strings.Contains(hint(err), "\n"+row) {
			t.Errorf("no row of %s in %q", row, hint(err))
		}
	}
	run.Prompt = f.Config.MaxPositions
	if _, err := run.Plan(); fault.KindOf(err) != fault.Inference {
		t.Errorf("more positions than the model has: %v", err)
	}
}

// TestDryGenerationIsTheGeneration: each component reaches the bytes that the record says. Only the hidden state of the position that a
// device works at early is in the record of every device.
func TestDryGenerationIsTheGeneration(t *testing.T) {
	f := modeltest.Open(t, gosrc)
	for _, prompt := range []int{1, 20, 700} {
		for _, tokens := range []int{1, 2, 9} {
			for _, temperature := range []float64{0, 1} {
				t.Run(fmt.Sprintf("%d tokens after %d at %g", tokens, prompt, temperature), func(t *testing.T) {
					contracttest.Cases(t, 1)
					d := modeltest.CPU(t, cpu.Options{})
					o := greedy(tokens, f.Config.Vocab)
					o.Temperature = temperature
					r, err := generate.DryRun{Target: d.Target, Model: model.Describe(f), Component: device.StudentWeights, Prompt: prompt, Options: o}.Record()
					if err != nil {
						t.Fatal(err)
					}
					m, err := model.LoadFrozen(d, f, device.StudentWeights)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := generate.Generate(t.Context(), m, d.NewStream(), make([]int32, prompt), o, nil); err != nil {
						t.Fatal(err)
					}
					_, held := d.Memory()
					if temperature == 0 {
						held[device.Activations] += int64(4 * f.Config.Hidden)
					}
					if !maps.Equal(r.Peak, held) {
						t.Errorf("planned %v\nheld    %v", r.Peak, held)
					}
				})
			}
		}
	}
}

// hint returns what err says would be right.
func hint(err error) string {
	var f *fault.Error
	if !errors.As(err, &f) {
		return ""
	}
	return f.Hint
}
