package kernel

import "apr/device"

// RowSums are what Loss writes of a row: CE, D, the teacher's entropy, and 1 where student and teacher agree.
const RowSums = 4

// Loss writes the sums of each row to out [rows, RowSums] and, unless grad is none, invN·∂/∂z.
func Loss(q Queue, out, grad, z, t, targets Mat, spec device.LossSpec, invN float64) {
	kind, mix := divergence(spec)
	inv := 1.0
	if !t.IsZero() {
		inv = 1 / spec.Temperature
	}
	byRows(q, z.Rows, func(lo, hi int) {
		args := []uint32{uint32(z.Cols), uint32(z.Cols), kind, b(!t.IsZero()), b(!grad.IsZero()),
			f((1 - spec.Alpha) * invN), f(spec.Alpha * spec.Temperature * invN), f(inv), f(spec.Cap)}
		for _, v := range mix {
			args = append(args, f(v))
		}
		q.Launch(Launch{"loss", []Mat{out.Range(lo, hi), grad.Range(lo, hi), z.Range(lo, hi), t.Range(lo, hi),
			part(targets, lo, hi), q.Faults()}, args, hi - lo})
	}, grad, z, t)
}

// divergence returns the kind of loss.wgsl and the coefficients of a mixture M = βp+(1−β)Q: β, and those of D =
// Σ DP·p·ln(p/M) + DQ·Q·ln(Q/M) and h = HLog·Q·ln(Q/M) + HP·p·Q/M + HQ·Q·Q/M.
func divergence(spec device.LossSpec) (kind uint32, mix [6]float64) {
	const forward, reverse, variation, mixture = 0, 1, 2, 3
	beta, rest := spec.Beta, 1-spec.Beta
	switch spec.Divergence {
	case device.ForwardKL:
		return forward, mix
	case device.ReverseKL:
		return reverse, mix
	case device.TVD:
		return variation, mix
	case device.JSD:
		if beta == 0 {
			return forward, mix
		}
		if beta == 1 {
			return reverse, mix
		}
		return mixture, [6]float64{beta, beta, rest, rest, 0, 0}
	case device.SkewForward:
		return mixture, [6]float64{beta, 1, 0, 0, -rest, 0}
	case device.SkewReverse:
		return mixture, [6]float64{rest, 0, 1, 1, 0, -beta}
	}
	panic("kernel: Loss: unknown divergence")
}

// Mix: y = T·ln(w·softmax(t/T)), or with add y = T·ln(e^(y/T) + w·softmax(t/T)).
func Mix(q Queue, y, t Mat, w, temperature float64, add bool) {
	if t.Cols == 0 {
		return
	}
	byRows(q, t.Rows, func(lo, hi int) {
		q.Launch(Launch{"mix", []Mat{y.Range(lo, hi), t.Range(lo, hi)}, []uint32{uint32(t.Cols), f(w), f(temperature),
			b(add)}, hi - lo})
	}, y, t)
}

// SquaredError writes Σ(u−t)² of each row to sums [rows, 1] and grad = factor·(u−t).
func SquaredError(q Queue, sums, grad, u, t Mat, factor float64) {
	byRows(q, u.Rows, func(lo, hi int) {
		q.Launch(Launch{"squared", []Mat{grad.Range(lo, hi), sums.Range(lo, hi), u.Range(lo, hi), t.Range(lo, hi)},
			[]uint32{uint32(u.Cols), f(factor)}, hi - lo})
	}, grad, u, t)
}
