package ref

import (
	"math"

	"apr/device"
)

// Norm returns ‖g‖₂ over all values of all gradients.
func Norm(grads ...Mat) float64 {
	sum := 0.0
	for _, g := range grads {
		for _, v := range g.V {
			sum += v * v
		}
	}
	return math.Sqrt(sum)
}

// ClipScale returns min(1, c/(norm+1e-6)); c = 0 is no clipping.
func ClipScale(norm, c float64) float64 {
	if c == 0 {
		return 1
	}
	return math.Min(1, c/(norm+1e-6))
}

// AdamW performs the update of device.AdamW on w, m and v in place, with the gradient scaled by s.Scale.
func AdamW(w, grad, m, v Mat, decay bool, a device.AdamW, s device.Scalars) {
	for i, g := range grad.V {
		g *= s.Scale
		if decay {
			w.V[i] *= 1 - s.LR*a.WeightDecay
		}
		m.V[i] = a.Beta1*m.V[i] + (1-a.Beta1)*g
		v.V[i] = a.Beta2*v.V[i] + (1-a.Beta2)*g*g
		w.V[i] -= s.LR / s.BiasCorr1 * m.V[i] / (math.Sqrt(v.V[i])/math.Sqrt(s.BiasCorr2) + a.Eps)
	}
}
