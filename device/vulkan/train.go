package vulkan

import (
	"math"

	"apr/device"
	"apr/device/vulkan/kernel"
	"apr/tensor"
)

// Loss adds the sums over the rows to the record and, if grad is not zero, writes InvN·∂/∂z of the loss to grad.
func (s *Stream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	device.CheckLoss(grad, z, t, targets, spec)
	if !s.begin() || !s.known("Loss", targets, z.Cols) {
		return
	}
	s.scalars.Positions += int64(z.Rows)
	out := s.Temp("sums of the loss", device.Scratch, tensor.F32, z.Rows, kernel.RowSums)
	kernel.Loss(s, mat(out), mat(grad), mat(z), mat(t), mat(targets), spec, s.scalars.InvN)
	taught, sc := !t.IsZero(), &s.scalars
	s.owe(out, func(row []float32) {
		sc.CE += float64(row[0])
		if taught {
			sc.D += float64(row[1])
			sc.Entropy += float64(row[2])
			sc.Agree += int64(row[3])
		}
	})
	s.end()
}

// Mix: y = T·ln(w·softmax(t/T)), or with add y = T·ln(e^{y/T} + w·softmax(t/T)).
func (s *Stream) Mix(y, t device.Tensor, w, temperature float64, add bool) {
	device.CheckMix(y, t, w, temperature)
	if s.begin() {
		kernel.Mix(s, mat(y), mat(t), w, temperature, add)
		s.end()
	}
}

// SquaredError adds Σ_r ‖u[r]−t[r]‖²/m to the record and writes grad = weight·InvN·2/m·(u−t).
func (s *Stream) SquaredError(grad, u, t device.Tensor, weight float64) {
	device.CheckSquaredError(grad, u, t, weight)
	if !s.begin() {
		return
	}
	out := s.Temp("sums of squares", device.Scratch, tensor.F32, u.Rows, 1)
	kernel.SquaredError(s, mat(out), mat(grad), mat(u), mat(t), weight*s.scalars.InvN*2/float64(u.Cols))
	sc, cols := &s.scalars, float64(u.Cols)
	s.owe(out, func(row []float32) { sc.Sums[device.HiddenStates] += float64(row[0]) / cols })
	s.end()
}

// CompareMaps is not there.
func (s *Stream) CompareMaps(dq, dk device.Tensor, own, big device.AttnMap, rows device.Tensor, weight float64) {
	device.CheckCompareMaps(dq, dk, own, big, rows, weight)
	s.lacks(device.Maps)
}

// Verdict computes the step's loss, the gradient norm over all params and the clip scale into the record, and whether
// the step is refused. Squares are summed on the device over blocks of 8192 elements, and the blocks in float64 here,
// in order: the host waits.
func (s *Stream) Verdict(params []*device.Param) {
	device.CheckVerdict(params)
	if !s.begin() {
		return
	}
	total := 0.0
	for _, p := range params {
		n := p.Rows * p.Cols
		out := s.Temp("squares of a gradient", device.Scratch, tensor.F32,
			(n+kernel.SquaresBlock-1)/kernel.SquaresBlock, kernel.SquaresSums)
		kernel.Squares(s, mat(out), mat(p.Grad))
		s.owe(out, func(row []float32) {
			total += float64(row[0])*kernel.SquaresScale + float64(row[1]) + float64(row[2])/kernel.SquaresScale
			if row[3] != 0 {
				total = math.NaN()
			}
		})
	}
	s.settle()
	if s.err != nil {
		return
	}
	sc := &s.scalars
	sc.GradNorm, sc.Scale = math.Sqrt(total), 1
	if sc.MaxNorm > 0 {
		sc.Scale = min(1, sc.MaxNorm/(sc.GradNorm+1e-6))
	}
	sc.Loss = sc.CEWeight*(sc.CE*sc.InvN) + sc.DWeight*(sc.D*sc.InvN)
	sc.Finite = finite(sc.CE) && finite(sc.D) && finite(sc.GradNorm)
	for i, w := range sc.Weights {
		if w != 0 {
			sc.Loss += w * (sc.Sums[i] * sc.InvN)
		}
		sc.Finite = sc.Finite && finite(sc.Sums[i])
	}
	sc.Diverged = sc.Finite && sc.MaxLoss > 0 && sc.Loss > sc.MaxLoss
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// AdamW updates params as the record says, and leaves all untouched if the verdict refused the step.
func (s *Stream) AdamW(params []*device.Param, a device.AdamW) {
	device.CheckAdamW(params)
	if !s.begin() || s.scalars.Refused() {
		return
	}
	sc := &s.scalars
	for _, p := range params {
		u := kernel.Update{
			Decay: 1, Beta1: a.Beta1, Rest1: 1 - a.Beta1, Beta2: a.Beta2, Rest2: 1 - a.Beta2, Scale: sc.Scale,
			Step: sc.LR / sc.BiasCorr1, Bias: 1 / math.Sqrt(sc.BiasCorr2), Eps: a.Eps,
		}
		if p.Decay {
			u.Decay = 1 - sc.LR*a.WeightDecay
		}
		kernel.AdamW(s, mat(p.Value), mat(p.Grad), mat(p.M), mat(p.V), u)
	}
	s.end()
}
