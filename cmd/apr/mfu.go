package main

import (
	"cmp"
	"context"
	"strings"

	"apr/bench"
	"apr/device"
	"apr/device/cpu"
	"apr/distill"
	"apr/internal/cli"
	runlog "apr/run/log"
)

// peak is the rate of matrix products that a step's rate is compared with, in operations a second; 0: not known.
type peak struct {
	FLOPS  float64 `json:"flops"`
	Source string  `json:"source"`
}

// cards are the peaks of matrix products of whole cards by their makers' data sheets, dense, in 10¹² operations a second: in
// bfloat16, TF32 and float32. The first whose words stand
// in a card's name counts.
var cards = []struct {
	name            string
	bf16, tf32, f32 float64
}{
	{"H100 PCIe", 756, 378, 51},
	{"H100 NVL", 835, 417, 60},
	{"H100", 989, 494, 67},
	{"H200 NVL", 835, 417, 60},
	{"H200", 989, 494, 67},
	{"GH200", 989, 494, 67},
	{"B200", 2250, 1125, 75},
	{"A100", 312, 156, 19.5},
	{"A40", 149.7, 74.8, 37.4},
	{"A30", 165, 82, 10.3},
	{"A10G", 70, 35, 31.5},
	{"A10", 125, 62.5, 31.2},
	{"L40S", 362, 183, 91.6},
	{"L40", 181, 90.5, 90.5},
	{"L4", 121, 60, 30.3},
}

// cardPeak looks a card up by its name. A partition of a card (MIG) has no entry.
func cardPeak(name, arithmetic string) peak {
	name = " " + strings.ReplaceAll(name, "-", " ") + " "
	if strings.Contains(name, " MIG ") {
		return peak{}
	}
	for _, c := range cards {
		if strings.Contains(name, " "+c.name+" ") {
			tera := map[string]float64{"bf16": c.bf16, "tf32": c.tf32, "f32": c.f32}[arithmetic]
			return peak{tera * 1e12, "the data sheet of " + c.name + ", " + arithmetic}
		}
	}
	return peak{}
}

// peakSide is the size of the product that measures a CPU: it fills the caches, and takes 15 ms with AVX-512.
const peakSide = 512

// peakOf finds what steps can be compared with: of a GPU the data sheet's number, of a CPU the rate of a square product, on
// workers of its own, so that the run's memory is only the run's.
func peakOf(ctx context.Context, e *cli.Env, dev *opened) (peak, error) {
	if dev.gpu != nil {
		return cardPeak(dev.Info().Name, dev.gpu.Arithmetic()), nil
	}
	own, err := cpu.New(cpu.Options{ISA: e.Getenv("APR_CPU")})
	if err != nil {
		return peak{}, err
	}
	defer own.Close()
	gflops, err := bench.PeakGFLOPS(ctx, own, own.NewStream(), peakSide)
	if err != nil {
		return peak{}, err
	}
	return peak{gflops * 1e9, "a product of 512 × 512 matrices, measured"}, nil
}

// peakRate returns the rate of peakOf; 0: not known.
func peakRate(ctx context.Context, e *cli.Env, dev *opened) func() float64 {
	return func() float64 {
		if p, err := peakOf(ctx, e, dev); err == nil {
			return p.FLOPS
		}
		return 0
	}
}

// utilisation is what the display needs to show how much of the device's rate a step uses.
type utilisation struct {
	body    float64 // operations of a step of the student's leg: products and attention, without heads and loss
	heads   float64 // those of both heads and the loss for each target; masked positions have none
	peak    float64 // 0: not known, or too low
	average average
}

// of returns the fraction of the peak that the last steps used, and false if it is not known. The control's steps have other costs.
// Steps faster than the peak refute it: it was measured while other work took the processor. Then no fraction is known.
func (u *utilisation) of(s runlog.Step) (float64, bool) {
	if u.peak <= 0 || u.body <= 0 || s.MS.Total <= 0 || s.Leg != distill.LegStudent {
		return 0, false
	}
	flops := u.body + u.heads*float64(s.Targets)
	mean := u.average.add(flops / (s.MS.Total / 1e3) / u.peak)
	if !(mean <= 1) {
		u.peak = 0
		return 0, false
	}
	return mean, true
}

// average forgets: each value counts a twentieth, or one of as many as it keeps, so that a number on a line can be read.
type average struct {
	mean float64
	n    int
	keep int // 0: 20
}

func (a *average) add(x float64) float64 {
	a.n++
	a.mean += (x - a.mean) / float64(min(a.n, cmp.Or(a.keep, 20)))
	return a.mean
}

// recordPeak finds the peak, writes it down, and returns what the display needs. The dry run takes each row for one document, so
// documents that are kept apart have fewer operations than it counts.
func recordPeak(ctx context.Context, e *cli.Env, r *distill.Run, dev *opened, o *distillOptions) (utilisation, error) {
	costs := r.Planned().Costs
	if costs.FLOPs <= 0 || o.DocumentMask {
		return utilisation{}, nil
	}
	p, err := peakOf(ctx, e, dev)
	if err != nil {
		return utilisation{}, err
	}
	if p.FLOPS <= 0 {
		return utilisation{}, r.Decision("peak", nil, "the peak of this device is not known: no utilisation is shown")
	}
	heads := costs.ByPhase[device.PhaseLoss.String()]
	positions := float64(o.BatchSize) * float64(o.GradAccum) * float64(o.SeqLen)
	return utilisation{body: costs.FLOPs - heads, heads: heads / positions, peak: p.FLOPS}, r.Decision("peak", p, "utilisation is the floating-point operations of a step, run dry, over its time and this peak; none is shown once steps exceed it")
}
