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

// drawNextCases are those of device.NextDrawer. A device whose streams are none says so in its Lacks, and the cases ask
// no more of it.
func drawNextCases() []Case {
	all := []Case{{Name: "draw next/not finite", check: checkDrawNextNotFinite}}
	for _, s := range [][2]int{{1, 1}, {1, 2}, {3, 17}, {5, 64}, {4, 257}, {2, 4099}, {3, 12288}, {1, 151936}} {
		for _, masked := range []bool{false, true} {
			if masked && s[1] < 3 {
				continue
			}
			all = append(all, both(fmt.Sprintf("draw next/%dx%d, some never: %t", s[0], s[1], masked),
				func(l *lab) { checkDrawNext(l, s[0], s[1], masked) })...)
		}
	}
	for _, s := range []struct{ cols, keys int }{{2, 2}, {17, 6}, {257, 3}, {4099, 1}} {
		all = append(all, both(fmt.Sprintf("draw next, limits/%d", s.cols),
			func(l *lab) { checkDrawLimits(l, s.cols, s.keys) })...)
	}
	all = append(all, both("draw next, limits/none", checkDrawUnlimited)...)
	return append(all, Case{Name: "draw next, limits/as often as likely", check: checkDrawLimitedShares},
		Case{Name: "draw next/as often as likely", check: checkDrawNextShares})
}

// nextDrawer returns the stream as one, nil if the device says that it is none.
func (l *lab) nextDrawer() device.NextDrawer {
	d, ok := l.s.(device.NextDrawer)
	if lacks := slices.Contains(l.dev.Info().Lacks, device.DrawsNext); ok == lacks {
		l.errorf("a stream is a NextDrawer: %v, and its device lacks it: %v", ok, lacks)
		return nil
	}
	return d
}

// keys uploads keys as halves.
func (l *lab) keys(keys []uint64) device.Tensor {
	halves := make([]int32, 0, 2*len(keys))
	for _, k := range keys {
		halves = append(halves, int32(uint32(k)), int32(uint32(k>>32)))
	}
	t := l.s.Temp("keys", device.Batch, tensor.I32, 2*len(keys), 1)
	l.s.UploadInts(t, halves)
	return t
}

// draw draws by keys, and returns ids and logarithms of probabilities.
func (l *lab) draw(
	d device.NextDrawer, x, never device.Tensor, keys []uint64, limits device.Tensor,
) (ids []int, logs []float64) {
	at, out := l.s.Temp("ids", device.Batch, tensor.I32, x.Rows, 1), l.out(tensor.F32, x.Rows, 2)
	d.DrawNext(at, out, x, never, l.keys(keys), limits)
	count := ref.New(x.Cols, 1)
	for i := range count.V {
		count.V[i] = float64(i)
	}
	src, same := l.in(tensor.F32, count), l.out(tensor.F32, x.Rows, 1)
	l.s.Gather(same, src, at) // ids are read back through a gather from a matrix that counts its rows
	got, told := l.get(out), l.get(same)
	for r := range x.Rows {
		ids, logs = append(ids, int(got.Row(r)[0])), append(logs, got.Row(r)[1])
		if told.V[r] != got.Row(r)[0] {
			l.errorf("row %d: id %g, and %g beside its probability", r, told.V[r], got.Row(r)[0])
		}
	}
	return ids, logs
}

// checkDrawNext: the id that is drawn has the largest score but for rounding, and its own probability.
func checkDrawNext(l *lab, rows, cols int, masked bool) {
	d := l.nextDrawer()
	if d == nil {
		return
	}
	x := l.random(rows, cols, 3)
	var never device.Tensor
	var bias []float64
	if masked {
		bias = make([]float64, cols)
		for i := 0; i < cols; i += 3 {
			bias[i] = math.Inf(-1)
			for r := range rows {
				x.Row(r)[i] += 6 // they would be drawn
			}
		}
		never = l.in(tensor.F32, ref.Mat{Rows: 1, Cols: cols, V: bias})
	}
	keys := make([]uint64, rows)
	for i := range keys {
		keys[i] = l.rng.Uint64()
	}
	xt := l.in(tensor.F32, x)
	ids, logs := l.draw(d, xt, never, keys, device.Tensor{})
	x = l.get(xt)
	scores := ref.DrawNext(x, bias, keys, nil, ref.Left)
	for r, id := range ids {
		best := slices.Max(scores.Row(r))
		if id < 0 || id >= cols || !(scores.Row(r)[id] >= best-1e-4) {
			l.errorf("row %d: id %d is drawn, whose score is not the largest, %g", r, id, best)
			return
		}
		want := ref.LogSoftmax(x.Row(r), 1)[id]
		l.note(near.Abs("ln p", logs[r:r+1], []float64{want}, 2e-5))
	}
}

// checkDrawNextNotFinite: a row with NaN or +∞ has no probability, the others theirs.
func checkDrawNextNotFinite(l *lab) {
	d := l.nextDrawer()
	if d == nil {
		return
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		for _, at := range []int{0, 31, 599} {
			x := l.random(3, 600, 1)
			x.Row(1)[at], x.Row(2)[at] = bad, math.Inf(-1)
			_, logs := l.draw(d, l.in(tensor.F32, x), device.Tensor{}, []uint64{1, 2, 3}, device.Tensor{})
			if !math.IsNaN(logs[1]) || math.IsNaN(logs[0]) || math.IsNaN(logs[2]) {
				l.errorf("%g in column %d of the second row: ln p are %v", bad, at, logs)
			}
		}
	}
}

// checkDrawNextShares: under many keys ids are drawn as often as they are likely: χ² of 9 degrees of freedom below
// 33.7, which a right device exceeds once in 10,000 seeds; the keys are the same each time.
func checkDrawNextShares(l *lab) {
	d := l.nextDrawer()
	if d == nil {
		return
	}
	const rows, rounds, cols = 500, 8, 10
	one := l.random(1, cols, 1)
	x := ref.New(rows, cols)
	for r := range rows {
		copy(x.Row(r), one.V)
	}
	xt := l.in(tensor.F32, x)
	counts := make([]float64, cols)
	for round := range rounds {
		keys := make([]uint64, rows)
		for i := range keys {
			keys[i] = uint64(round*rows+i) * 0x9e3779b97f4a7c15
		}
		ids, _ := l.draw(d, xt, device.Tensor{}, keys, device.Tensor{})
		for _, id := range ids {
			counts[min(max(id, 0), cols-1)]++
		}
	}
	chi := 0.0
	for i, ln := range ref.LogSoftmax(l.get(xt).Row(0), 1) {
		want := rows * rounds * math.Exp(ln)
		chi += (counts[i] - want) * (counts[i] - want) / want
	}
	if !(chi < 33.7) {
		l.errorf("χ² of %d draws is %g: %v", rows*rounds, chi, counts)
	}
}

// lots are the operands of DrawNext.
type lots struct{ ids, out, x, never, keys, limits device.Tensor }

func drawNextRefusals() []Refusal {
	operands := func(k *desk) lots {
		return lots{k.ids(3), k.single(3, 2), k.single(3, 7), k.single(1, 7), k.ids(6), k.single(3, 3)}
	}
	return refusals(device.OpDrawNext, operands, func(s device.Stream, a lots) {
		if d, ok := s.(device.NextDrawer); ok {
			d.DrawNext(a.ids, a.out, a.x, a.never, a.keys, a.limits)
			return
		}
		device.CheckDrawNext(a.ids, a.out, a.x, a.never, a.keys, a.limits) // a stream that has no such operation
	},
		wrong[lots]{"ids of another number", wrongShapes, func(k *desk, a *lots) { a.ids = k.ids(2) }},
		wrong[lots]{"ids of floats", noIDs, func(k *desk, a *lots) { a.ids = k.single(3, 1) }},
		wrong[lots]{"one column of results", wrongShapes, func(k *desk, a *lots) { a.out = k.single(3, 1) }},
		wrong[lots]{"keys of another number", wrongShapes, func(k *desk, a *lots) { a.keys = k.ids(3) }},
		wrong[lots]{"keys of floats", noIDs, func(k *desk, a *lots) { a.keys = k.single(6, 1) }},
		wrong[lots]{"never of another number", "a vector has not one row of the right length",
			func(k *desk, a *lots) { a.never = k.single(1, 6) }},
		wrong[lots]{"limits of another number", wrongShapes, func(k *desk, a *lots) { a.limits = k.single(2, 3) }},
		wrong[lots]{"limits without k", wrongShapes, func(k *desk, a *lots) { a.limits = k.single(3, 2) }},
		wrong[lots]{"limits of another type", noFloat32, func(k *desk, a *lots) { a.limits = k.narrow(3, 3) }},
		wrong[lots]{"x of another type", noFloat32, func(k *desk, a *lots) { a.x = k.narrow(3, 7) }},
		wrong[lots]{"no columns", "the columns are none, or cannot be told as a number",
			func(k *desk, a *lots) { a.x, a.never = k.single(3, 0), device.Tensor{} }},
		wrong[lots]{"x given back", given, func(k *desk, a *lots) { a.x = k.gone(tensor.F32, 3, 7) }},
	)
}
