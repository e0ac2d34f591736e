// Package optim holds what surrounds the AdamW update of a device: the learning-rate schedule and the scalars of
// a step (clip threshold, bias corrections).
//
// The update itself, the gradient norm and the clip scale are operations of the device: see device.AdamW and
// device.Stream.Verdict.
package optim

import (
	"math"

	"apr/device"
	"apr/internal/fault"
)

// Kind selects the shape of a schedule after its warm-up.
type Kind string

// The schedules.
const (
	Cosine   Kind = "cosine"
	Linear   Kind = "linear"
	Constant Kind = "constant"
)

// Schedule gives the learning rate of each step k of Steps, counted from 0. With peak η, W warm-up steps and
// m = MinRatio:
//
//	k < W:     η(k+1)/W
//	cosine:    η(m + (1−m)·½(1+cos π(k−W)/(K−W)))
//	linear:    η(1 − (1−m)(k−W)/(K−W))
//	constant:  η
type Schedule struct {
	Kind          Kind
	Peak          float64
	Warmup, Steps int
	MinRatio      float64
}

// At returns the learning rate of step k.
func (s Schedule) At(k int) float64 {
	if k < s.Warmup {
		return s.Peak * float64(k+1) / float64(s.Warmup)
	}
	if s.Kind == Constant || s.Steps <= s.Warmup {
		return s.Peak
	}
	x := min(1, float64(k-s.Warmup)/float64(s.Steps-s.Warmup))
	if s.Kind == Linear {
		return s.Peak * (1 - (1-s.MinRatio)*x)
	}
	return s.Peak * (s.MinRatio + (1-s.MinRatio)*0.5*(1+math.Cos(math.Pi*x)))
}

// Validate reports what is wrong with the schedule, if anything.
func (s Schedule) Validate() error {
	switch {
	case s.Kind != Cosine && s.Kind != Linear && s.Kind != Constant:
		return fault.New(fault.Usage, "unknown learning-rate schedule %q", s.Kind).WithHint("cosine, linear or constant")
	case !(s.Peak > 0) || math.IsInf(s.Peak, 0):
		return fault.New(fault.Usage, "learning rate %g is not positive and finite", s.Peak)
	case s.Warmup < 0 || s.Steps <= 0:
		return fault.New(fault.Usage, "%d warm-up steps of %d steps", s.Warmup, s.Steps)
	case !(s.MinRatio >= 0 && s.MinRatio <= 1):
		return fault.New(fault.Usage, "minimum learning-rate ratio %g is not in [0,1]", s.MinRatio)
	}
	return nil
}

// Optimizer is AdamW with a schedule and clipping; Applied counts the updates that were not refused.
type Optimizer struct {
	Schedule Schedule
	AdamW    device.AdamW
	MaxNorm  float64 // clip threshold of the global gradient norm; 0: off
	Applied  int
}

// Scalars returns what the device needs to know for step k with n unmasked targets.
func (o *Optimizer) Scalars(k, n int) device.Scalars {
	t := float64(o.Applied + 1)
	return device.Scalars{
		LR: o.Schedule.At(k), InvN: 1 / float64(n), MaxNorm: o.MaxNorm,
		BiasCorr1: 1 - math.Pow(o.AdamW.Beta1, t), BiasCorr2: 1 - math.Pow(o.AdamW.Beta2, t),
	}
}
