package plan

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/model"
	"apr/tensor"
)

func TestSplits(t *testing.T) {
	for batch, want := range map[int][]int{1: {1}, 2: {2, 1}, 8: {8, 4, 3, 2, 1}, 9: {9, 5, 3, 2, 1}, 16: {16, 8, 6, 4, 3, 2, 1}} {
		if got := Splits(batch); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", batch, got, want)
		}
	}
	if n := len(Splits(1 << 20)); n > 100 {
		t.Errorf("%d sizes for a large batch", n)
	}
}

// TestLargest: the largest that fits, in few questions, for needs that are lines, curves, steps, and none at all.
func TestLargest(t *testing.T) {
	needs := map[string]func(n int) int64{
		"line":        func(n int) int64 { return 1000 + 7*int64(n) },
		"flat":        func(n int) int64 { return 1000 },
		"steps":       func(n int) int64 { return 1000 + 512*int64((n+63)/64) },
		"steep later": func(n int) int64 { return 1000 + int64(n) + max(0, 50*int64(n-300)) },
		"flat later":  func(n int) int64 { return 1000 + 50*int64(min(n, 300)) + int64(n)/10 },
		"square":      func(n int) int64 { return 1000 + int64(n)*int64(n) },
		"one step":    func(n int) int64 { return map[bool]int64{true: 1000, false: 1 << 40}[n < 777] },
	}
	for name, need := range needs {
		for _, limit := range []int{0, 1, 2, 7, 8, 1000, 1 << 18} {
			for _, budget := range []int64{1, 999, 1000, 1001, 1006, 1007, 1512, 2000, 5000, 100_000, 1 << 30} {
				asked := 0
				got, err := Largest(limit, budget, func(n int) (int64, error) {
					if asked++; n < 1 || n > limit {
						t.Fatalf("asked for %d of %d", n, limit)
					}
					return need(n), nil
				})
				fits := func(n int) bool { return n < 1 || need(n) <= budget }
				if err != nil || !fits(got) || got < limit && fits(got+1) || asked > 40 {
					t.Errorf("%s, limit %d, budget %d: %d after %d questions, %v", name, limit, budget, got, asked, err)
				}
				if name == "line" && asked > 10 {
					t.Errorf("%d questions for a line, limit %d, budget %d", asked, limit, budget)
				}
			}
		}
	}
	if n, err := Largest(8, 0, nil); n != 8 || err != nil {
		t.Errorf("of a memory of unknown size: %d, %v", n, err)
	}
	broken := errors.New("broken")
	if _, err := Largest(8, 5, func(n int) (int64, error) { return int64(n), map[bool]error{true: broken}[n > 1] }); !errors.Is(err, broken) {
		t.Errorf("the error is lost: %v", err)
	}
}

// synthetic is a step whose memory is 100 a row kept in full, 60 without norms, 10 in blocks, and 1 for 4 rows of a
// chunk.
func synthetic(s Setting) (*dry.Record, error) {
	perRow := []int64{100, 60, 10}[s.Recompute]
	return &dry.Record{
		Static: map[device.Component]int64{device.TeacherWeights: 1000}, Temps: perRow*int64(s.MicroRows) + int64(s.ChunkRows)/4, Most: 0,
	}, nil
}

func TestChoose(t *testing.T) {
	all := []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks}
	open := Request{BatchSize: 8, SeqLen: 1024, MicroRows: Splits(8), ChunkRows: []int{1024, 512, 256}, Recompute: all}
	with := func(change func(r *Request)) Request {
		r := open
		change(&r)
		return r
	}
	none, norms, blocks := model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks
	for _, tt := range []struct {
		name    string
		r       Request
		budget  int64
		want    Setting
		verdict string
	}{
		{"room for all", open, 5000, Setting{8, 8, 1024, none}, Ready},
		{"unknown", open, 0, Setting{8, 8, 1024, none}, Ready},
		{"exactly", open, 1000 + 800 + 256, Setting{8, 8, 1024, none}, Ready},
		{"a smaller chunk", open, 1000 + 800 + 255, Setting{8, 8, 512, none}, Ready},
		{"the smallest chunk", open, 1000 + 800 + 127, Setting{8, 8, 256, none}, Ready},
		{"norms again", open, 1000 + 800 + 63, Setting{8, 8, 1024, norms}, Ready},
		{"less at a time", open, 1000 + 480 + 63, Setting{8, 4, 512, none}, Ready},
		{"2048 positions at a time", open, 1000 + 120 + 64, Setting{8, 2, 256, norms}, Ready},
		{"blocks before fewer positions", open, 1000 + 110 + 64, Setting{8, 8, 256, blocks}, Ready},
		{"single rows", open, 1000 + 10 + 64, Setting{8, 1, 256, blocks}, Ready},
		{"too large", open, 1000 + 10 + 63, Setting{8, 1, 256, blocks}, TooLarge},
		{"asked for norms", with(func(r *Request) { r.Recompute = []model.Recompute{norms} }), 5000, Setting{8, 8, 1024, norms}, Ready},
		{"asked for blocks", with(func(r *Request) { r.Recompute = []model.Recompute{blocks} }), 5000, Setting{8, 8, 1024, blocks}, Ready},
		{"asked for all rows", with(func(r *Request) { r.MicroRows = []int{8} }), 1000 + 480, Setting{8, 8, 1024, blocks}, Ready},
		{"asked for a chunk", with(func(r *Request) { r.ChunkRows = []int{4096} }), 1000 + 800 + 1023, Setting{8, 8, 4096, norms}, Ready},
		{"short rows", with(func(r *Request) { r.SeqLen = 16 }), 5000, Setting{8, 8, 1024, none}, Ready},
	} {
		contracttest.Cases(t, 1)
		tt.r.Budget = tt.budget
		p, err := Choose(tt.r, synthetic)
		if err != nil || p.Setting != tt.want || p.Verdict != tt.verdict {
			t.Errorf("%s: %v, %s, %v; want %v, %s", tt.name, p.Setting, p.Verdict, err, tt.want, tt.verdict)
		}
		if p.Verdict == TooLarge != (p.Memory.Total > tt.budget && tt.budget > 0) {
			t.Errorf("%s: %s with %d of %d bytes", tt.name, p.Verdict, p.Memory.Total, tt.budget)
		}
	}
	broken := errors.New("broken")
	if _, err := Choose(open, func(Setting) (*dry.Record, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error("the error is lost")
	}
}

// The components add up to the total, whatever holds the memory, and so do the lines of the table.
func TestMemoryAddsUp(t *testing.T) {
	d := dry.New(dry.Target{Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Reserved: 12345})
	s := d.NewStream()
	p := d.Param(device.ParamSpec{Name: "p", Rows: 300, Cols: 300})
	d.Alloc("cache", device.KVCache, tensor.BF16, 100, 100)
	d.Alloc("ids", device.Batch, tensor.I32, 100, 1)
	x := s.Temp("x", device.Activations, tensor.BF16, 100, 300)
	y := s.Temp("y", device.Activations, tensor.BF16, 100, 300)
	s.Release(x)
	z := s.Temp("z", device.Logits, tensor.F32, 100, 300)
	s.Phase(device.PhaseForward)
	s.MatMul(z, y, p.Weight, device.Tensor{}, false)
	rates := Rates{FLOPS: 1e12, Bandwidth: 1e12, Launch: 1e-3}
	plan := Of(Setting{}, d.Record(), 0, rates)
	m := plan.Memory
	if sum := m.Teacher + m.Student + m.Gradients + m.Optimizer + m.Activations + m.Logits + m.Batch + m.KVCache +
		m.Scratch; sum != m.Total || m.Total != d.Record().Total() {
		t.Errorf("components add up to %d, total %d", sum, m.Total)
	}
	if m.Student != 300*300*6 || m.Optimizer != 300*300*8 ||
		m.Holes != 60160 || m.Scratch != m.Holes+12345 || m.KVCache != 20000 {
		t.Errorf("%+v", m)
	}
	if plan.Costs.FLOPs != 2*100*300*300 || plan.Costs.ByPhase["student_forward"] != plan.Costs.FLOPs {
		t.Errorf("%+v", plan.Costs)
	}
	if plan.Seconds == nil || math.Abs(*plan.Seconds-1e-3) > 1e-12 {
		t.Errorf("%v seconds, one operation starts in 0.001", plan.Seconds)
	}
	if Of(Setting{}, d.Record(), 0, Rates{}).Seconds != nil {
		t.Error("a time without rates")
	}
	for _, want := range []string{"teacher", "optimizer", "total", "available", "not known"} {
		if !strings.Contains(m.Table(), want) {
			t.Errorf("no %q in\n%s", want, m.Table())
		}
	}
	b, err := json.Marshal(plan)
	if err != nil || !strings.Contains(string(b), `"verdict":"ready"`) || strings.Contains(string(b), "largest") {
		t.Errorf("%s, %v", b, err)
	}
	contracttest.Cases(t, 1)
}
