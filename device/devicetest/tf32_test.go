package devicetest

import (
	"math"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// nearest and cut round to tf32: to nearest, ties away from zero, and towards zero.
func nearest(m ref.Mat) ref.Mat { return toTF32(m, 0x1000) }
func cut(m ref.Mat) ref.Mat     { return toTF32(m, 0) }

func toTF32(m ref.Mat, half uint32) ref.Mat {
	m = m.Clone()
	for i, v := range m.V {
		m.V[i] = float64(math.Float32frombits((math.Float32bits(float32(v)) + half) &^ 0x1fff))
	}
	return m
}

// newSlowTF32 is a device whose products round their operands.
func newSlowTF32(round func(ref.Mat) ref.Mat) *slow {
	d := newSlow(tensor.F32)
	d.tf32 = true
	d.ops.linear = func(x, w, bias ref.Mat) ref.Mat { return ref.Linear(round(x), round(w), bias) }
	d.ops.linearBack = func(dy, x, w ref.Mat) (dx, dw, dbias ref.Mat) {
		_, _, dbias = ref.LinearBackward(dy, x, w)
		dx, dw, _ = ref.LinearBackward(round(dy), round(x), round(w))
		return dx, dw, dbias
	}
	d.ops.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (o, lse ref.Mat) {
		return ref.Attention(nearest(q), nearest(k), nearest(v), a, first, sinks)
	}
	d.ops.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv ref.Mat) {
		return ref.AttentionBackward(nearest(do), o, nearest(q), nearest(k), nearest(v), a, first, sinks)
	}
	return d
}

// TestSuiteAcceptsTF32: products may round to nearest or cut off.
func TestSuiteAcceptsTF32(t *testing.T) {
	for name, c := range map[string]struct {
		round  func(ref.Mat) ref.Mat
		groups []string
	}{
		"nearest": {nearest, []string{"matmul", "matmulglu", "weight", "attention"}}, "cut": {cut, []string{"matmul", "weight"}},
	} {
		d := newSlowTF32(c.round)
		for _, check := range Cases() {
			if group, _, _ := strings.Cut(check.Name, "/"); slices.Contains(c.groups, group) {
				if err := check.Check(d); err != nil {
					t.Errorf("%s: %s: %v", name, check.Name, err)
				}
			}
		}
	}
}

// TestSuiteCatchesMutantsTF32: the room for roundings hides no mistake but those that are as small.
func TestSuiteCatchesMutantsTF32(t *testing.T) {
	small := []string{"attention gradient off by a thousandth"}
	for _, m := range slices.Concat(mutants, blockMutants, gateMutants) {
		if !slices.Contains([]string{"attention/", "attention/masked", "attention/sinks", "matmul/"}, m.group) || slices.Contains(small, m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			d := newSlowTF32(nearest)
			m.plant(&d.ops)
			caught(t, d, m.group)
		})
	}
	back := func(change func(dq, dk, dv ref.Mat)) func(t *testing.T) {
		return func(t *testing.T) {
			d := newSlowTF32(nearest)
			right := d.ops.attentionBack
			d.ops.attentionBack = func(do, o, q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (dq, dk, dv ref.Mat) {
				dq, dk, dv = right(do, o, q, k, v, a, first, sinks)
				change(dq, dk, dv)
				return dq, dk, dv
			}
			caught(t, d, "attention/")
		}
	}
	grow := func(m ref.Mat) { copy(m.V, times(m, 1.03).V) }
	t.Run("attention gradient of queries off by three hundredths", back(func(dq, _, _ ref.Mat) { grow(dq) }))
	t.Run("of keys", back(func(_, dk, _ ref.Mat) { grow(dk) }))
	t.Run("of values", back(func(_, _, dv ref.Mat) { grow(dv) }))
	t.Run("attention's values rounded to seven bits", func(t *testing.T) {
		d := newSlowTF32(nearest)
		right := d.ops.attention
		d.ops.attention = func(q, k, v ref.Mat, a device.Attn, first []int, sinks []float64) (o, lse ref.Mat) {
			v = v.Clone()
			round(v, tensor.BF16)
			return right(q, k, v, a, first, sinks)
		}
		caught(t, d, "attention/")
	})
}
