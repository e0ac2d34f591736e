package devicetest

import (
	"fmt"
	"math"
	"slices"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// drawManyCases are the cases of device.ManyDrawer. A device whose streams do not implement it lists DrawsMany in its
// Lacks, and each case checks no more than that.
func drawManyCases() []Case {
	var all []Case
	for _, s := range []struct {
		rows, cols, draws int
		temperature       float64
	}{{1, 1, 1, 1}, {3, 5, 50, 1}, {2, 515, 63, .5}, {4, 4096, 50, 2}, {2, 40001, 7, 1}} {
		name := fmt.Sprintf("draw many/%d rows, %d of %d ids, T %g", s.rows, s.draws, s.cols, s.temperature)
		all = append(all, Case{Name: name, check: func(l *lab) { checkDrawMany(l, s.rows, s.cols, s.draws, s.temperature) }})
	}
	return append(all, Case{Name: "draw many/not finite", check: checkDrawManyNotFinite})
}

// manyDrawer returns the stream as one, nil if the device says that it is none.
func (l *lab) manyDrawer() device.ManyDrawer {
	d, ok := l.s.(device.ManyDrawer)
	lacks := slices.Contains(l.dev.Info().Lacks, device.DrawsMany)
	if ok == lacks {
		l.errorf("a stream is a ManyDrawer: %v, and its device lacks it: %v", ok, lacks)
		return nil
	}
	return d
}

// manyKeys makes keys and positions of rows.
func (l *lab) manyKeys(rows int) (keys []int) {
	for r := range rows {
		keys = append(keys, int(int32(l.rng.Uint32())), int(int32(l.rng.Uint32())), r*77)
	}
	return keys
}

// checkDrawMany compares ids with those of the cumulative probabilities in float64, which no u is nearer to than
// rounding moves them, and the entropy. In the first row most ids have no weight.
func checkDrawMany(l *lab, rows, cols, draws int, temperature float64) {
	d := l.manyDrawer()
	if d == nil {
		return
	}
	z := l.random(rows, cols, 3)
	for i := range z.Row(0) {
		if i%5 != 2 {
			z.Row(0)[i] -= 100
		}
	}
	if cols > 2 {
		z.Row(0)[1] = math.Inf(-1)
	}
	keys := l.manyKeys(rows)
	zt := l.in(tensor.F32, z)
	out := l.inout(tensor.F32, l.random(rows, draws+device.ManySums, 1))
	d.DrawMany(out, zt, l.ids(keys), temperature)
	z = l.get(zt)
	got := l.get(out)
	for r := range rows {
		key, position := [2]uint32{uint32(keys[3*r]), uint32(keys[3*r+1])}, uint32(keys[3*r+2])
		us := make([]uint64, draws)
		for k := range us {
			us[k] = device.ManyFraction(key, position, k)
		}
		ids, entropy := ref.DrawMany(z.Row(r), us, temperature)
		row := make([]float32, draws+device.ManySums)
		for i, v := range got.Row(r) {
			row[i] = float32(v)
		}
		for k, id := range ids {
			if int(row[k]) != id {
				l.errorf("row %d, draw %d: id %v, want %d", r, k, row[k], id)
				break
			}
		}
		sum, h := device.ManyResult(row, cols)
		if sum == 0 {
			l.errorf("row %d: nothing was drawn from", r)
		}
		l.note(near.Abs("entropy", []float64{h}, []float64{entropy}, 1e-10))
	}
}

// checkDrawManyNotFinite: a row with a NaN, with +∞ or of −∞ alone says so, and another one does not.
func checkDrawManyNotFinite(l *lab) {
	d := l.manyDrawer()
	if d == nil {
		return
	}
	z := l.random(4, 300, 3)
	z.Row(0)[77], z.Row(1)[299] = math.NaN(), math.Inf(1)
	for i := range z.Row(2) {
		z.Row(2)[i] = math.Inf(-1)
	}
	out := l.inout(tensor.F32, l.random(4, 9+device.ManySums, 1))
	d.DrawMany(out, l.in(tensor.F32, z), l.ids(l.manyKeys(4)), 1)
	got := l.get(out)
	for r := range 4 {
		row := make([]float32, 9+device.ManySums)
		for i, v := range got.Row(r) {
			row[i] = float32(v)
		}
		if sum, _ := device.ManyResult(row, 300); (sum == 0) != (r < 3) {
			l.errorf("row %d: the sum of weights is %d", r, sum)
		}
	}
}

// drawing are the operands of DrawMany.
type drawing struct {
	out, z, keys device.Tensor
	temperature  float64
}

func drawManyRefusals() []Refusal {
	const noTemperature = "temperature is not positive"
	operands := func(k *desk) drawing { return drawing{k.single(2, 11), k.single(2, 9), k.ids(6), 2} }
	return refusals(device.OpDrawMany, operands, func(s device.Stream, a drawing) {
		if d, ok := s.(device.ManyDrawer); ok {
			d.DrawMany(a.out, a.z, a.keys, a.temperature)
			return
		}
		device.CheckDrawMany(a.out, a.z, a.keys, a.temperature) // a stream that has no such operation
	},
		wrong[drawing]{"rows of out", wrongShapes, func(k *desk, a *drawing) { a.out = k.single(3, 11) }},
		wrong[drawing]{"no room for an id", wrongShapes, func(k *desk, a *drawing) { a.out = k.single(2, 6) }},
		wrong[drawing]{"too many draws", wrongShapes,
			func(k *desk, a *drawing) { a.out = k.single(2, device.ManySums+device.MaxMany+1) }},
		wrong[drawing]{"keys of another number", wrongShapes, func(k *desk, a *drawing) { a.keys = k.ids(2) }},
		wrong[drawing]{"logits of another type", noFloat32, func(k *desk, a *drawing) { a.z = k.narrow(2, 9) }},
		wrong[drawing]{"out of another type", noFloat32, func(k *desk, a *drawing) { a.out = k.narrow(2, 11) }},
		wrong[drawing]{"keys that are no ids", "ids are not an int32 vector without gaps",
			func(k *desk, a *drawing) { a.keys = k.single(1, 6) }},
		wrong[drawing]{"z given back", given, func(k *desk, a *drawing) { a.z = k.gone(tensor.F32, 2, 9) }},
		wrong[drawing]{"no temperature", noTemperature, func(_ *desk, a *drawing) { a.temperature = 0 }},
		wrong[drawing]{"temperature NaN", noTemperature, func(_ *desk, a *drawing) { a.temperature = math.NaN() }},
	)
}
