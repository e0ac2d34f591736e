package devicetest

import (
	"math"
	"slices"

	"apr/device"
	"apr/internal/ref"
)

// gateMutants are mistakes in sinks, in the activations of gpt-oss and of gated attention, and in columns that take turns.
var gateMutants = []mutant{
	{"sink in the maximum but not in the sum", "attention/sinks", withSinks(func([]float64, device.Attn) []float64 { return nil })},
	{"sink scaled like a score", "attention/sinks", withSinks(func(b []float64, a device.Attn) []float64 {
		for i := range b {
			b[i] *= a.ScoreScale()
		}
		return b
	})},
	{"sink capped like a score", "attention/sinks", withSinks(func(b []float64, a device.Attn) []float64 {
		for i := range b {
			if a.Cap > 0 {
				b[i] = a.Cap * math.Tanh(b[i]/a.Cap)
			}
		}
		return b
	})},
	{"sink of the key-value head", "attention/sinks", withSinks(func(b []float64, a device.Attn) []float64 {
		all := slices.Clone(b)
		for h := range b {
			b[h] = all[h*a.KVHeads/a.Heads]
		}
		return b
	})},
	{"sink with the value of the first key", "attention/sinks", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			x, lse = ref.Attention(q, k, v, a, first, sinks)
			for n := range x.Rows {
				for c := range x.Cols {
					if h := c / a.HeadDim; sinks != nil {
						x.Row(n)[c] += math.Exp(sinks[h]-lse.Row(n)[h]) * v.Row(n / a.QLen * a.KStride)[h*a.KVHeads/a.Heads*a.HeadDim+c%a.HeadDim]
					}
				}
			}
			return x, lse
		}
	}},
	{"log-sum-exp without the sink", "attention/sinks", func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			x, _ = ref.Attention(q, k, v, a, first, sinks)
			_, lse = ref.Attention(q, k, v, a, first, nil)
			return x, lse
		}
	}},
	{"backward as if there were no sink", "attention/sinks", func(o *ops) {
		o.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int, _ []float64) (dq, dk, dv ref.Mat) {
			return ref.AttentionBackward(do, o, q, k, v, a, first, nil)
		}
	}},
	{"backward of one key without scores", "attention/sinks", func(o *ops) { // with a sink p of one key is not 1
		o.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv ref.Mat) {
			dq, dk, dv = ref.AttentionBackward(do, o, q, k, v, a, first, sinks)
			if a.KLen == 1 || a.Window == 1 {
				clear(dq.V)
				clear(dk.V)
			}
			return dq, dk, dv
		}
	}},
	{"no gradient of sinks", "attention/sinks", withSinkGrad(func(db ref.Mat) ref.Mat { return times(db, 0) })},
	{"gradient of sinks with the wrong sign", "attention/sinks", withSinkGrad(func(db ref.Mat) ref.Mat { return times(db, -1) })},
	{"gradient of sinks of the next head", "attention/sinks", withSinkGrad(func(db ref.Mat) ref.Mat {
		return ref.Beside(db.ColRange(db.Cols-1, db.Cols), db.ColRange(0, db.Cols-1))
	})},
	{"gradient of sinks of the first batch row", "attention/sinks", func(o *ops) {
		o.sinkGrad = func(do, o, q, k ref.Mat, a device.Attn, first []int, sinks []float64) ref.Mat {
			a.Batch = 1
			return ref.SinkGrad(do, o, q, k, a, first, sinks)
		}
	}},
	{"gate clamped below too", "glu/oss", ossAs(func(g, u float64) float64 {
		g, u = max(-7, min(g, 7)), max(-7, min(u, 7))
		return (u + 1) * g / (1 + math.Exp(-1.702*g))
	})},
	{"gate clamped below instead of above", "glu/oss", ossAs(func(g, u float64) float64 {
		g, u = max(-7, g), max(-7, min(u, 7))
		return (u + 1) * g / (1 + math.Exp(-1.702*g))
	})},
	{"up clamped above only", "glu/oss", ossAs(func(g, u float64) float64 {
		g, u = min(g, 7), min(u, 7)
		return (u + 1) * g / (1 + math.Exp(-1.702*g))
	})},
	{"σ of the gate before its clamp", "glu/oss", ossAs(func(g, u float64) float64 {
		c, u := min(g, 7), max(-7, min(u, 7))
		return (u + 1) * c / (1 + math.Exp(-1.702*g))
	})},
	{"σ without its factor", "glu/oss", ossAs(func(g, u float64) float64 {
		g, u = min(g, 7), max(-7, min(u, 7))
		return (u + 1) * g / (1 + math.Exp(-g))
	})},
	{"up without 1", "glu/oss", ossAs(func(g, u float64) float64 {
		g, u = min(g, 7), max(-7, min(u, 7))
		return u * g / (1 + math.Exp(-1.702*g))
	})},
	{"gradients through the clamps", "glu/oss", func(o *ops) {
		o.gluBack = func(dm, gu ref.Mat, act device.Activation) ref.Mat {
			if act != device.OSS {
				return ref.GLUBackward(dm, gu, act)
			}
			clamped, f := gu.Clone(), dm.Cols
			for i := range clamped.V {
				clamped.V[i] = min(clamped.V[i], 7)
				if i%(2*f) >= f {
					clamped.V[i] = max(-7, clamped.V[i])
				}
			}
			return ref.GLUBackward(dm, clamped, act)
		}
	}},
	{"σ of what is gated", "glu/sigmoid", func(o *ops) {
		o.glu = func(gu ref.Mat, act device.Activation) ref.Mat {
			if f := gu.Cols / 2; act == device.Sigmoid {
				gu = ref.Beside(gu.ColRange(f, 2*f), gu.ColRange(0, f))
			}
			return ref.GLU(gu, act)
		}
	}},
	{"SiLU for σ", "glu/sigmoid", func(o *ops) {
		o.glu = func(gu ref.Mat, act device.Activation) ref.Mat {
			if act == device.Sigmoid {
				act = device.SiLU
			}
			return ref.GLU(gu, act)
		}
	}},
	{"gates without a gradient", "glu/sigmoid", func(o *ops) {
		o.gluBack = func(dm, gu ref.Mat, act device.Activation) ref.Mat {
			d := ref.GLUBackward(dm, gu, act)
			for i := range d.V {
				if act == device.Sigmoid && i%d.Cols < dm.Cols {
					d.V[i] = 0
				}
			}
			return d
		}
	}},
	{"turns the other way", "interleave/", func(o *ops) {
		o.deinterleave = func(x ref.Mat, width int) (a, b ref.Mat) { b, a = ref.Deinterleave(x, width); return a, b }
	}},
	{"halves instead of turns", "interleave/", func(o *ops) {
		o.deinterleave = func(x ref.Mat, _ int) (a, b ref.Mat) { return x.ColRange(0, x.Cols/2), x.ColRange(x.Cols/2, x.Cols) }
	}},
	{"turns of single columns", "interleave/", func(o *ops) {
		o.deinterleave = func(x ref.Mat, _ int) (a, b ref.Mat) { return ref.Deinterleave(x, 1) }
	}},
	{"turns together the other way", "interleave/", func(o *ops) {
		o.interleave = func(a, b ref.Mat, width int) ref.Mat { return interleave(b, a, width) }
	}},
}

// withSinks is attention with other sinks, the log-sum-exp among what they change.
func withSinks(change func(sinks []float64, a device.Attn) []float64) func(*ops) {
	return func(o *ops) {
		o.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (x, lse ref.Mat) {
			if sinks != nil {
				sinks = change(slices.Clone(sinks), a)
			}
			return ref.Attention(q, k, v, a, first, sinks)
		}
	}
}

// withSinkGrad is a changed gradient of sinks.
func withSinkGrad(change func(db ref.Mat) ref.Mat) func(*ops) {
	return func(o *ops) {
		o.sinkGrad = func(do, o, q, k ref.Mat, a device.Attn, first []int, sinks []float64) ref.Mat {
			return change(ref.SinkGrad(do, o, q, k, a, first, sinks))
		}
	}
}

// ossAs is another function of gate and up for OSS.
func ossAs(f func(g, u float64) float64) func(*ops) {
	return func(o *ops) {
		o.glu = func(gu ref.Mat, act device.Activation) ref.Mat {
			m := ref.GLU(gu, act)
			for i := range m.V {
				if r, c := i/m.Cols, i%m.Cols; act == device.OSS {
					m.V[i] = f(gu.Row(r)[c], gu.Row(r)[m.Cols+c])
				}
			}
			return m
		}
	}
}
