package ref

import "apr/device"

// starts returns where in its row the document of each position begins, as device.Sequences says it of first; nil for nil.
func starts(s device.Sequences, first []int) []int {
	if first == nil {
		return nil
	}
	out := make([]int, len(first))
	for n := range out {
		if at := n % s.Len; at > 0 && first[n] < at {
			out[n] = out[n-1]
		} else {
			out[n] = at
		}
	}
	return out
}

func sequencesOf(s device.Sequences, first []int) sequences {
	return sequences{s.Len, starts(s, first)}
}

// Conv returns y_t = silu(Σ_j w_j·x_{t−K+1+j}) by channel, and the last K−1 inputs of each sequence. from are those before the
// first; V nil: zeros.
func Conv(x, w Mat, s device.Sequences, first []int, from Mat) (y, to Mat) {
	var t tape
	y = t.silu(t.conv(&node{Mat: x}, &node{Mat: w}, sequencesOf(s, first), from, false)).Mat
	k := w.Cols - 1
	to = New(s.Batch*k, x.Cols)
	for r := range to.Rows {
		b, at := r/k, s.Len-k+r%k // in its sequence
		switch {
		case at >= 0:
			copy(to.Row(r), x.Row(b*s.Len+at))
		case from.V != nil:
			copy(to.Row(r), from.Row(b*k+k+at))
		}
	}
	return y, to
}

// ConvBackward returns the gradients of x and w.
func ConvBackward(dy, x, w Mat, s device.Sequences, first []int) (dx, dw Mat) {
	var t tape
	nx, nw := t.param(x), t.param(w)
	t.backward(t.silu(t.conv(nx, nw, sequencesOf(s, first), Mat{}, false)), dy)
	return nx.grad(), nw.grad()
}

// delta runs the delta rule on a tape: u [q | k | v], ba [b | a].
func (t *tape) delta(u, ba, logA, dt *node, d device.Delta, first []int, from Mat, errors planted) (*node, Mat) {
	rule := deltaRule{
		sequences: sequencesOf(d.Sequences, first), hk: d.KeyHeads, dk: d.KeyDim, hv: d.ValueHeads, dv: d.ValueDim, from: from, planted: errors,
	}
	return t.deltaRule(u, t.cols(ba, 0, d.ValueHeads), t.cols(ba, d.ValueHeads, 2*d.ValueHeads), logA, dt, rule)
}

// DeltaNet returns o and the states behind each sequence, token by token. from are the states before; V nil: zeros.
func DeltaNet(u, ba, logA, dt Mat, d device.Delta, first []int, from Mat) (o, to Mat) {
	return deltaNet(u, ba, logA, dt, d, first, from, planted{})
}

func deltaNet(u, ba, logA, dt Mat, d device.Delta, first []int, from Mat, errors planted) (o, to Mat) {
	if d.Len == 0 {
		if from.V == nil {
			from = New(d.Batch*d.ValueHeads, d.KeyDim*d.ValueDim)
		}
		return New(0, d.Inner()), from
	}
	var t tape
	out, to := t.delta(&node{Mat: u}, &node{Mat: ba}, &node{Mat: logA}, &node{Mat: dt}, d, first, from, errors)
	return out.Mat, to
}

// DeltaNetBackward returns the gradients of u, ba, logA and dt.
func DeltaNetBackward(do, u, ba, logA, dt Mat, d device.Delta, first []int) (du, dba, dLogA, ddt Mat) {
	var t tape
	nu, nba, nlog, ndt := t.param(u), t.param(ba), t.param(logA), t.param(dt)
	if d.Len > 0 {
		o, _ := t.delta(nu, nba, nlog, ndt, d, first, Mat{}, planted{})
		t.backward(o, do)
	}
	return nu.grad(), nba.grad(), nlog.grad(), ndt.grad()
}

// DeltaNetLate is DeltaNet with a mistake that is plausible: the decay behind the update.
func DeltaNetLate(u, ba, logA, dt Mat, d device.Delta, first []int, from Mat) (o, to Mat) {
	return deltaNet(u, ba, logA, dt, d, first, from, planted{lateDecay: true})
}
