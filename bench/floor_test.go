package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"apr/arch"
	"apr/device"
	"apr/device/cpu"
	"apr/device/dry"
	"apr/distill"
	"apr/model"
	"apr/plan"
	"apr/tensor"
)

// planned is a step of a tiny model of two layers that teaches itself, cut into two micro-batches and chunks of the head.
func planned(t *testing.T, target func() dry.Target) plan.Plan {
	t.Helper()
	c := arch.Qwen2(arch.Sizes{Hidden: 16, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8, Width: 24, Vocab: 40,
		MaxPositions: 64, Theta: 1e6, Eps: 1e-6, Tied: true, InitRange: 0.02,
	})
	run := distill.DryRun{Target: target, Teacher: model.OutlineOf(c, tensor.BF16), Student: c, Loss: Loss, Vocab: 40, SeqLen: 8, Accum: 1}
	s := plan.Setting{BatchSize: 4, MicroRows: 2, ChunkRows: 8}
	r, err := run.Record(s)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Of(s, r, 0, plan.Rates{})
}

func flops(all []dry.Op) (sum float64) {
	for _, o := range all {
		sum += 2 * float64(o.M) * float64(o.N) * float64(o.K)
	}
	return sum
}

// The sequence has every product of the record as often, phase after phase; a gradient is overwritten once a step.
func TestSequence(t *testing.T) {
	p := planned(t, gpu(dry.As(tensor.BF16), 0))
	all := sequence(p.Record, 2)
	count, want := map[dry.Op]int64{}, map[dry.Op]int64{}
	var flop float64
	for _, c := range p.Record.Ops {
		if c.IsProduct() {
			c.Add = c.Add && c.Kind != device.OpMatMulWeightGrad
			want[c.Op] += c.Times
			flop += float64(c.Times) * c.FLOPs
		}
	}
	added := map[device.Phase][2]int{} // gradients that are overwritten, and added to
	for _, o := range all {
		if o.Kind == device.OpMatMulWeightGrad {
			n := added[o.Phase]
			if o.Add {
				n[1]++
			} else {
				n[0]++
			}
			added[o.Phase] = n
			o.Add = false
		}
		count[o]++
	}
	if len(count) != len(want) || len(want) < 12 {
		t.Errorf("%d kinds of products, want %d", len(count), len(want))
	}
	for o, n := range want {
		if count[o] != n {
			t.Errorf("%+v comes %d times, want %d", o, count[o], n)
		}
	}
	if flops(all) != flop {
		t.Errorf("%g operations, want %g", flops(all), flop)
	}
	if !slices.IsSortedFunc(all, func(a, b dry.Op) int { return int(a.Phase) - int(b.Phase) }) {
		t.Error("phases are mixed")
	}
	// Two layers of four matrices in two micro-batches; the head, which both micro-batches add to.
	if n := added[device.PhaseBackward]; n != [2]int{8, 8} {
		t.Errorf("gradients of layers: %v overwrite and add", n)
	}
	if n := added[device.PhaseLoss]; n[0] != 1 || n[1] < 1 {
		t.Errorf("gradients of the head: %v overwrite and add", n)
	}
	first := slices.IndexFunc(all, func(o dry.Op) bool { return o.Phase == device.PhaseTeacher })
	if a, b := all[first], all[first+1]; a == b {
		t.Error("equal products of layers come one after the other")
	}
}

// Operands are views of the areas, in 8-bit floats too, none of which is too small.
func TestOperands(t *testing.T) {
	for name, keep := range map[string]func(device.WeightSpec) (dry.Kept, error){
		"bf16": dry.As(tensor.BF16),
		"fp8": func(spec device.WeightSpec) (dry.Kept, error) {
			k, err := dry.As(tensor.BF16)(spec)
			k.FP8 = true
			return k, err
		},
	} {
		d := dry.New(gpu(keep, 0)())
		s := d.NewStream()
		p := planned(t, gpu(keep, 0))
		all, a, eighths := sequence(p.Record, 2), areas{act: tensor.BF16}, 0
		for _, o := range all {
			a.need(o)
		}
		a.take(d, s)
		for _, o := range all {
			m := a.operands(o)
			for _, x := range []device.Tensor{m.Out, m.In, m.Other, m.InScale, m.OtherScale, m.Bias, m.Gated} {
				if x.IsZero() {
					continue
				}
				if end := (x.Off + (x.Rows-1)*x.Stride + x.Cols) * x.DType.BlockBytes(); int64(end) > x.Buf.Bytes() {
					t.Errorf("%s: %+v needs %d bytes of %d", name, o, end, x.Buf.Bytes())
				}
			}
			if o.FP8 {
				eighths++
				if 2*m.In.Cols != o.K || m.InScale.Rows != o.M || m.OtherScale.Rows != o.N {
					t.Errorf("%+v over %+v", o, m)
				}
			}
			if (o.Kind == device.OpMatMulGLU) == m.Gated.IsZero() {
				t.Errorf("%v has %+v as its gated output", o.Kind, m.Gated)
			}
		}
		if (eighths > 0) != (name == "fp8") {
			t.Errorf("%s: %d products in 8-bit floats", name, eighths)
		}
		a.release(d, s)
	}
}

// e4m3 takes the next number in magnitude, and no pair is a NaN or is rounded by bfloat16.
func TestE4M3Pair(t *testing.T) {
	for x, want := range map[float64]float32{0: 0, 1: 1, -1: -1, 1.1: 1.125, 448: 448, 1e9: 448, -1e9: -448} {
		if got := tensor.F8E4M3ToF32(e4m3(x)); got != want {
			t.Errorf("e4m3(%g) is %g, want %g", x, got, want)
		}
	}
	for i := range 256 {
		for j := range 256 {
			x := e4m3Pair(float64(i-128)/20, float64(j-128)/20)
			if x != x || math.IsInf(float64(x), 0) || tensor.BF16ToF32(tensor.F32ToBF16(x)) != x {
				t.Fatalf("%d, %d: %g", i, j, x)
			}
		}
	}
}

// On a CPU every round runs all products of the step, and no other operation.
func TestFloorOnCPU(t *testing.T) {
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p := planned(t, d.Target)
	s := d.Stream()
	f, err := MeasureFloor(t.Context(), d, s, p, math.MaxInt64, time.Millisecond)
	if err != nil || !(f.Milliseconds > 0) || f.Rounds < 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	var got, calls int64
	for _, o := range s.Profile() {
		switch {
		case o.FLOPs > 0:
			got, calls = got+o.FLOPs, calls+o.Calls
		case o.Op == device.OpGLU:
			t.Errorf("%v ran", o.Op)
		}
	}
	all := sequence(p.Record, 2)
	if rounds := calls / int64(len(all)); rounds < 2 || calls%int64(len(all)) != 0 || got != rounds*int64(flops(all)) {
		t.Errorf("%d products with %d operations; a round has %d with %g", calls, got, len(all), flops(all))
	}
	if now, _ := d.Memory(); now[device.Scratch] != 0 {
		t.Errorf("%d bytes are kept", now[device.Scratch])
	}
	if _, err := MeasureFloor(t.Context(), d, s, p, 1000, time.Millisecond); err == nil {
		t.Error("operands found room in 1,000 bytes")
	}
	if _, err := MeasureFloor(t.Context(), d, withoutProducts{s}, p, math.MaxInt64, time.Millisecond); err == nil {
		t.Error("a stream that multiplies nothing alone was measured")
	}
}

type withoutProducts struct{ device.Stream }

// What the first half of the time takes does not count; there are two rounds at least; an error ends the measurement.
func TestMeasureRounds(t *testing.T) {
	begun := time.Now()
	f, err := measureRounds(t.Context(), 80*time.Millisecond, func() error {
		if time.Since(begun) < 30*time.Millisecond {
			time.Sleep(20 * time.Millisecond) // cold
		} else {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	if err != nil || !(f.Milliseconds >= 1 && f.Milliseconds < 15) || f.Rounds < 2 {
		t.Errorf("%+v, %v", f, err)
	}
	rounds := 0
	if f, err := measureRounds(t.Context(), 0, func() error { rounds++; return nil }); err != nil || f.Rounds != 1 || rounds != 2 {
		t.Errorf("%+v after %d rounds, %v", f, rounds, err)
	}
	bad := errors.New("no")
	if _, err := measureRounds(t.Context(), time.Hour, func() error { return bad }); !errors.Is(err, bad) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := measureRounds(ctx, time.Hour, func() error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A product of experts is one product of all their rows, of as many operations.
func TestDense(t *testing.T) {
	for kind, want := range map[device.Op]device.Op{
		device.OpGroupedMatMul: device.OpMatMul, device.OpGroupedInputGrad: device.OpMatMulInputGrad,
		device.OpGroupedWeightGrad: device.OpMatMulWeightGrad, device.OpMatMul: device.OpMatMul,
	} {
		o := dry.Op{Kind: kind, M: 10, N: 8, K: 16, Experts: 4}
		got := dense(o)
		o.Kind = want
		if got != o {
			t.Errorf("%v became %+v, want %+v", kind, got, o)
		}
	}
}
