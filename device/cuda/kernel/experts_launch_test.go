package kernel

import (
	"fmt"
	"strings"
	"testing"

	"apr/tensor"
)

// TestExpertLaunches: at the sizes of published models, one token and many, every launch is one that a device accepts.
func TestExpertLaunches(t *testing.T) {
	for _, act := range []tensor.DType{tensor.BF16, tensor.F32} {
		for _, c := range []struct{ experts, active, out, in int }{{128, 8, 768, 2048}, {128, 8, 2048, 768}, {32, 4, 2880, 2880}, {4096, 16, 256, 1024}} {
			for _, tokens := range []int{1, 9, 4096, 1 << 16} {
				n := tokens * c.active
				ids := func(n int) Mat { return dense(tensor.I32, n, 1) }
				r := Routing{Experts: c.experts, Active: c.active, Chosen: ids(n), Slots: ids(n), Rows: ids(n), Starts: ids(c.experts + 1)}
				x, y, bias := dense(act, n, c.in), dense(act, n, c.out), dense(tensor.F32, c.experts, c.out)
				z, w, vector := dense(tensor.F32, tokens, c.experts), dense(tensor.F32, tokens, c.active), dense(tensor.F32, 1, c.experts)
				checkLaunches(t, "Route", func(q Queue) { Route(q, w, z, vector, r) })
				checkLaunches(t, "RouteBackward", func(q Queue) { RouteBackward(q, dense(act, tokens, c.experts), vector, w, z, vector, r) })
				checkLaunches(t, "Combine", func(q Queue) { Combine(q, dense(act, tokens, c.in), x, w, r, false) })
				checkLaunches(t, "CombineBackward", func(q Queue) { CombineBackward(q, x, w, dense(act, tokens, c.in), x, w, r) })
				checkLaunches(t, "CountSlots", func(q Queue) { CountSlots(q, vector, r) })
				checkLaunches(t, "BalanceBackward", func(q Queue) { BalanceBackward(q, dense(act, tokens, c.experts), z, vector, 1) })
				checkLaunches(t, "ExpertsBias", func(q Queue) { ExpertsBias(q, bias, y, r, 0) })
				checkLaunches(t, "ExpertsWeightGrad", func(q Queue) { ExpertsWeightGrad(q, dense(tensor.F32, c.experts*c.out, c.in), y, x, true, r, 0) })
				all := []Experts{{Plain: dense(act, c.experts*c.out, c.in)}}
				for d := range expertTypes {
					if c.in%d.BlockLen() == 0 {
						all = append(all, Experts{Blocks: NewBlocks(1<<30, c.experts*c.out, c.in, d)})
					}
				}
				for _, e := range all {
					checkLaunches(t, "ExpertsNT", func(q Queue) { ExpertsNT(q, y, x, e, bias, r, 0) })
					checkLaunches(t, "ExpertsNN", func(q Queue) { ExpertsNN(q, x, y, e, true, r, 0) })
				}
			}
		}
	}
}

// TestExpertLaunchesSM90: the same of the kernels for compute capability 9.0, and that their numbers are those of the source.
func TestExpertLaunchesSM90(t *testing.T) {
	const d = tensor.BF16
	for _, c := range []struct{ experts, active, out, in int }{{128, 8, 768, 2048}, {128, 8, 2048, 768}, {32, 4, 2880, 2880}, {4096, 16, 256, 1024}} {
		for _, tokens := range []int{1, 9, 4096, 1 << 16} {
			n := tokens * c.active
			r := Routing{Experts: c.experts, Active: c.active, Starts: dense(tensor.I32, c.experts+1, 1)}
			x, y, bias, w := dense(d, n, c.in), dense(d, n, c.out), dense(tensor.F32, c.experts, c.out), dense(d, c.experts*c.out, c.in)
			checkLaunches(t, "ExpertsSM90", func(q Queue) { ExpertsSM90(q, GemmNT, y, x, Mat{}, w, bias, false, r, 0) })
			checkLaunches(t, "ExpertsSM90", func(q Queue) { ExpertsSM90(q, GemmNN, x, y, Mat{}, w, Mat{}, true, r, 0) })
			checkLaunches(t, "ExpertsWeightGradSM90", func(q Queue) { ExpertsWeightGradSM90(q, dense(tensor.F32, c.experts*c.out, c.in), y, x, true, r, 0) })
		}
	}
	for _, define := range []string{
		fmt.Sprintf("#define HIGH %d ", expertsSM90High), fmt.Sprintf("#define WIDE %d\n", expertsSM90Wide),
	} {
		if hasKernel(t, ExpertsSM90Module, ""); !strings.Contains(sources[ExpertsSM90Module], define) {
			t.Errorf("%s.cu has no %q", ExpertsSM90Module, define)
		}
	}
}

// TestExpertsSM90Serves: operands that the kernels would read or write wrongly are declined.
func TestExpertsSM90Serves(t *testing.T) {
	good := func() [3]Mat {
		return [3]Mat{{16, 9, 24, 32, tensor.BF16}, {32, 9, 40, 40, tensor.BF16}, {48, 48, 40, 40, tensor.BF16}}
	}
	if m := good(); !ExpertsSM90Serves(m[0], m[1], m[2], 2) || ExpertsSM90Serves(m[0], m[1], m[2], 0) {
		t.Error("2 experts are declined, or none are not")
	}
	for what, change := range map[string]func(*Mat){
		"pointer": func(m *Mat) { m.Ptr += 8 }, "stride": func(m *Mat) { m.Stride += 4 }, "columns": func(m *Mat) { m.Cols -= 4 }, "none": func(m *Mat) { m.Cols = 0 },
		"type": func(m *Mat) { m.Type = tensor.F32 },
	} {
		for i := range 3 {
			m := good()
			change(&m[i])
			if ExpertsSM90Serves(m[0], m[1], m[2], 2) != (what == "type" && i == 0) {
				t.Errorf("%s of operand %d", what, i)
			}
		}
	}
}

// TestWorstTiles: no split of slots needs more tiles than the worst, and one needs as many.
func TestWorstTiles(t *testing.T) {
	for _, high := range []int{1, 3, 32} {
		for experts := 1; experts <= 4; experts++ {
			for slots := range 70 {
				most := 0
				var split func(e, left, tiles int)
				split = func(e, left, tiles int) {
					if e == experts-1 {
						most = max(most, tiles+ceil(left, high))
						return
					}
					for n := 0; n <= left; n++ {
						split(e+1, left-n, tiles+ceil(n, high))
					}
				}
				split(0, slots, 0)
				if got := worstTiles(slots, experts, high); got != most {
					t.Fatalf("%d slots of %d experts in tiles of %d: %d, want %d", slots, experts, high, got, most)
				}
			}
		}
	}
}

// TestExpertModules: products name the modules of their matrices, and those of few tokens one more.
func TestExpertModules(t *testing.T) {
	for _, c := range []struct {
		types string
		act   tensor.DType
		few   bool
		want  []string
	}{
		{"bf16", tensor.BF16, false, []string{"experts_gemm"}}, {"f32", tensor.F32, true, []string{"experts_gemm_f32"}},
		{"q4_k", tensor.BF16, true, []string{"experts_blocks", "experts_pairs", "experts_rows"}}, {"q8_0", tensor.F32, false, []string{"experts_blocks_f32"}},
	} {
		if got := ExpertModules(c.types, c.act, c.few); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
