package ref

import (
	"math"

	"apr/device"
)

// Position is the loss of one position: L = (1−Alpha)·CE + Alpha·T²·D.
type Position struct {
	Loss, CE, D float64
	Entropy     float64 // of the teacher at the temperature
	Agree       bool    // the largest logits of both have the same index
}

// LossAt returns the loss of one position with student logits z, teacher logits t (nil: none) and target y.
func LossAt(z, t []float64, y int, spec device.LossSpec) Position {
	p := Position{CE: logSumExp(z) - z[y]}
	p.Loss = (1 - spec.Alpha) * p.CE
	if t == nil {
		return p
	}
	lp := LogSoftmax(t, spec.Temperature)
	p.D = Divergence(lp, LogSoftmax(z, spec.Temperature), spec)
	for _, l := range lp {
		p.Entropy -= plogp(l, l)
	}
	p.Agree = ArgMax(Mat{1, len(z), z})[0] == ArgMax(Mat{1, len(t), t})[0]
	if spec.Alpha != 0 {
		p.Loss += spec.Alpha * spec.Temperature * spec.Temperature * p.D
	}
	return p
}

// LossGradAt returns ∂L/∂z of LossAt: (1−Alpha)(softmax(z) − e_y) + Alpha·G with the G of device.LossSpec; with a Cap, times
// 1−(z/Cap)², which is the gradient over what z was before its soft-cap.
func LossGradAt(z, t []float64, y int, spec device.LossSpec) []float64 {
	g := lossGradAt(z, t, y, spec)
	if spec.Cap > 0 {
		for i, v := range z {
			g[i] *= 1 - v/spec.Cap*(v/spec.Cap)
		}
	}
	return g
}

func lossGradAt(z, t []float64, y int, spec device.LossSpec) []float64 {
	g := make([]float64, len(z))
	for i, l := range LogSoftmax(z, 1) {
		g[i] = (1 - spec.Alpha) * math.Exp(l)
	}
	g[y] -= 1 - spec.Alpha
	if spec.Alpha == 0 {
		return g
	}
	for i, v := range divergenceGrad(LogSoftmax(t, spec.Temperature), LogSoftmax(z, spec.Temperature), spec) {
		g[i] += spec.Alpha * v
	}
	return g
}

// Divergence returns D(p,Q) of device.Divergence, given ln p and ln Q.
func Divergence(lp, lq []float64, spec device.LossSpec) float64 {
	beta := spec.Beta
	switch kindOf(spec) {
	case device.ForwardKL:
		return kl(lp, lq)
	case device.ReverseKL:
		return kl(lq, lp)
	case device.JSD:
		m := mix(beta, lp, lq)
		return beta*kl(lp, m) + (1-beta)*kl(lq, m)
	case device.TVD:
		sum := 0.0
		for i := range lp {
			sum += math.Abs(math.Exp(lp[i])-math.Exp(lq[i])) / 2
		}
		return sum
	case device.SkewForward:
		return kl(lp, mix(beta, lp, lq))
	case device.SkewReverse:
		return kl(lq, mix(1-beta, lp, lq))
	}
	panic("ref: unknown divergence")
}

// divergenceGrad returns G = T²·∂D/∂z, given ln p and ln Q.
func divergenceGrad(lp, lq []float64, spec device.LossSpec) []float64 {
	b, temp := spec.Beta, spec.Temperature
	g := make([]float64, len(lq))
	kind := kindOf(spec)
	if kind == device.ForwardKL {
		for i := range g {
			g[i] = temp * (math.Exp(lq[i]) - math.Exp(lp[i]))
		}
		return g
	}
	h := make([]float64, len(lq))
	for i := range h {
		p, q := math.Exp(lp[i]), math.Exp(lq[i])
		switch kind {
		case device.ReverseKL:
			h[i] = plogp(lq[i], lq[i]-lp[i])
		case device.JSD:
			h[i] = (1 - b) * plogp(lq[i], lq[i]-logMix(b, lp[i], lq[i]))
		case device.TVD:
			h[i] = sign(q-p) * q / 2
		case device.SkewForward:
			if p > 0 && q > 0 {
				h[i] = -(1 - b) * math.Exp(lp[i]+lq[i]-logMix(b, lp[i], lq[i]))
			}
		case device.SkewReverse:
			m := logMix(1-b, lp[i], lq[i])
			if q > 0 {
				h[i] = q*(lq[i]-m) - b*math.Exp(2*lq[i]-m)
			}
		}
	}
	sum := 0.0
	for _, v := range h {
		sum += v
	}
	for i := range g {
		g[i] = temp * (h[i] - math.Exp(lq[i])*sum)
	}
	return g
}

// kindOf returns the divergence of spec, with the two limits of JSD named for what they are.
func kindOf(spec device.LossSpec) device.Divergence {
	if spec.Divergence == device.JSD && spec.Beta == 0 {
		return device.ForwardKL
	}
	if spec.Divergence == device.JSD && spec.Beta == 1 {
		return device.ReverseKL
	}
	return spec.Divergence
}

// LogSoftmax returns x/T − lse(x/T).
func LogSoftmax(x []float64, temp float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / temp
	}
	lse := logSumExp(out)
	for i := range out {
		out[i] -= lse
	}
	return out
}

// kl returns Σ p ln(p/q), given ln p and ln q.
func kl(lp, lq []float64) float64 {
	sum := 0.0
	for i := range lp {
		sum += plogp(lp[i], lp[i]-lq[i])
	}
	return sum
}

// plogp returns e^lp·x, which is 0 where the probability is 0, whatever x is: 0·ln 0 = 0.
func plogp(lp, x float64) float64 {
	if p := math.Exp(lp); p > 0 {
		return p * x
	}
	return 0
}

// mix returns ln(w·p + (1−w)·q), element by element.
func mix(w float64, lp, lq []float64) []float64 {
	out := make([]float64, len(lp))
	for i := range out {
		out[i] = logMix(w, lp[i], lq[i])
	}
	return out
}

// logMix returns ln(w·p + (1−w)·q), given ln p and ln q, also where p and q underflow.
func logMix(w, lp, lq float64) float64 {
	a, b := math.Log(w)+lp, math.Log(1-w)+lq
	if math.IsInf(a, -1) && math.IsInf(b, -1) {
		return math.Inf(-1)
	}
	return logSumExp([]float64{a, b})
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

// Loss sums LossAt over the rows of z and t (the zero Mat: no teacher) and returns invN times the gradient over z.
// The sums are those of device.Scalars; the mean loss is (1−Alpha)·CE·invN + Alpha·T²·D·invN.
func Loss(z, t Mat, targets []int, invN float64, spec device.LossSpec) (sums device.Scalars, dz Mat) {
	dz = New(z.Rows, z.Cols)
	for r := range z.Rows {
		var teacher []float64
		if t.V != nil {
			teacher = t.Row(r)
		}
		p := LossAt(z.Row(r), teacher, targets[r], spec)
		sums.Positions++
		sums.CE += p.CE
		sums.D += p.D
		sums.Entropy += p.Entropy
		if p.Agree {
			sums.Agree++
		}
		for c, g := range LossGradAt(z.Row(r), teacher, targets[r], spec) {
			dz.Row(r)[c] = g * invN
		}
	}
	return sums, dz
}

// StepLoss returns the mean loss L = 1/N Σ LossAt over the N positions of logits z with mask true, the sums it is made
// of, and ∂L/∂z, which is zero elsewhere. Teacher logits t may be wider than z: only the columns of z count.
func StepLoss(z, t Mat, targets []int, mask []bool, spec device.LossSpec) (loss float64, sums device.Scalars, dz Mat) {
	dz = New(z.Rows, z.Cols)
	rows := make([]int, 0, z.Rows)
	for r, on := range mask {
		if on {
			rows = append(rows, r)
		}
	}
	invN := 1 / float64(len(rows))
	picked := make([]int, len(rows))
	for i, r := range rows {
		picked[i] = targets[r]
	}
	teacher := Mat{}
	if t.V != nil {
		teacher = Embed(t.ColRange(0, z.Cols), rows)
	}
	sums, grad := Loss(Embed(z, rows), teacher, picked, invN, spec)
	EmbedBackward(dz, rows, grad)
	loss = invN * (1 - spec.Alpha) * sums.CE
	if spec.Alpha != 0 {
		loss += invN * spec.Alpha * spec.Temperature * spec.Temperature * sums.D
	}
	return loss, sums, dz
}
