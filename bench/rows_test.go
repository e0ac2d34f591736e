//go:build emulate || gpu

package bench_test

import (
	"fmt"
	"slices"
	"testing"

	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/model"
)

// TestFewPositions: a prompt of up to 64 positions, whose products read blocks in tiles, is as close to a CPU in float32 as one whose matrices
// are expanded, and gives the bits that it gives after positions one at a time.
func TestFewPositions(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, scheme := range []convert.Scheme{convert.Q4_K_M, convert.Q8_0} {
		f, err := bench.RandomQuantised(small(t, 768, 512), 3, scheme)
		if err != nil {
			t.Fatal(err)
		}
		exact, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		onCPU, err := model.LoadFrozenAs(exact, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			t.Fatal(err)
		}
		d := openCUDA(t)
		defer d.Close()
		load := func() *model.Model {
			m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		inTiles, expanded := load(), load()
		s := d.NewStream()
		for _, n := range []int{2, 8, 9, 33, 64} {
			want := prompt(t, onCPU, exact.NewStream(), n, 0)
			first := prompt(t, inTiles, s, n, 0)
			direct, apart := distance(first, want), distance(prompt(t, expanded, byOperation(s), n, 0), want)
			t.Logf("%v, %d positions: relative error %.5f in tiles, %.5f otherwise", scheme, n, direct, apart)
			if limit := max(1.15*apart, 0.01); !(direct <= limit) || direct == 0 {
				t.Errorf("%v, %d positions: relative error %.5f in tiles, %.5f otherwise", scheme, n, direct, apart)
			}
			prompt(t, inTiles, s, 1, 2)
			if again := prompt(t, inTiles, s, n, 0); !slices.Equal(first, again) {
				t.Errorf("%v: a prompt of %d positions gives other bits after positions one at a time", scheme, n)
			}
		}
	}
}

// TestFewPositionsIDs: a greedy generation goes on with the same ids whether its prompt read blocks in tiles or expanded.
func TestFewPositionsIDs(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f, err := bench.RandomQuantised(small(t, 512, 2000), 5, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	o := generate.Options{MaxTokens: 12, RepeatPenalty: 1, Vocab: f.Config.Vocab}
	for _, n := range []int{3, 40, 64} {
		var all []string
		for _, tiles := range []bool{false, true} {
			d := openCUDA(t)
			defer d.Close()
			m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
			if err != nil {
				t.Fatal(err)
			}
			s := device.Stream(d.NewStream())
			if !tiles {
				s = byOperation(s)
			}
			r, err := generate.Generate(t.Context(), m, s, make([]int32, n), o, nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(r.IDs))
		}
		if all[0] != all[1] {
			t.Errorf("after %d tokens %s, expanded %s", n, all[1], all[0])
		}
	}
}
