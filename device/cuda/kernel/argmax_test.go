//go:build emulate

package kernel

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"apr/internal/ref"
	"apr/tensor"
)

// rowsOf are rows of which each is a question of its own to ArgMax.
var rowsOf = []func(row []float64){
	func([]float64) {},
	func(row []float64) { row[len(row)-1], row[len(row)/2] = 9, 9 }, // ties at the end
	func(row []float64) { row[0], row[len(row)-1] = 9, 9 },          // and at the front
	func(row []float64) { fill(row, -5) },                           // and everywhere
	func(row []float64) { fill(row, math.NaN()) },                   // nothing to compare with
	func(row []float64) { fill(row, math.NaN()); row[len(row)-1] = math.Inf(-1) },
	func(row []float64) { fill(row, math.Copysign(0, -1)); row[len(row)-1] = 0 }, // zeros of either sign are equal
	func(row []float64) { fill(row, math.Inf(-1)) },
	func(row []float64) { row[len(row)/3] = math.Inf(-1) },
	func(row []float64) { row[len(row)/3], row[2*len(row)/3] = math.Inf(1), math.Inf(1) },
	func(row []float64) { row[0] = math.NaN() },
	func(row []float64) { row[len(row)-1] = math.NaN() },
}

// checkArgMax compares ArgMax of m, rounded to d, with its reference, with best and without.
func checkArgMax(t *testing.T, l *lab, d tensor.DType, m ref.Mat) {
	t.Helper()
	x := l.apart().in(d, m)
	want := ref.Best(m)
	ids, only, best := l.apart().out(tensor.I32, m.Rows, 1), l.apart().out(tensor.I32, m.Rows, 1), l.apart().out(tensor.F32, m.Rows, 2)
	ArgMax(l.op(), ids, best, x)
	ArgMax(l.op(), only, Mat{}, x)
	got, column, alone := l.get(best), l.get(ids), l.get(only)
	for r := range m.Rows {
		id, top := want.Row(r)[0], want.Row(r)[1]
		if column.V[r] != id || alone.V[r] != id || got.Row(r)[0] != id {
			t.Errorf("row %d: column %g, without best %g, in best %g, want %g", r, column.V[r], alone.V[r], got.Row(r)[0], id)
		}
		if v := got.Row(r)[1]; v != top && !(math.IsNaN(v) && math.IsNaN(top)) {
			t.Errorf("row %d: largest %g, want %g", r, v, top)
		}
	}
	if l.rec().Arrived != 0 {
		t.Errorf("%d blocks have come to a launch that is over", l.rec().Arrived)
	}
}

func TestArgMax(t *testing.T) {
	eachCase(t, append(shapes, [2]int{3, 5000}, [2]int{24, 4105}), func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		m := l.random(rows, cols, 1)
		for r := range rows {
			rowsOf[r%len(rowsOf)](m.Row(r))
		}
		checkArgMax(t, l, d, m)
	})
}

// TestArgMaxOfSlices: rows that several blocks share, of widths around what a block has and a pack, ask every question.
func TestArgMaxOfSlices(t *testing.T) {
	for _, d := range floatTypes {
		for _, cols := range []int{1023, 1024, 1025, 4095, 4096, 4097, 8191, 8192, 8193, 12289, 20001} {
			eachLayout(t, func(t *testing.T, l *lab) {
				l.multiprocessors = 132
				if l.gap > l.lead { // rows begin at packs, whatever is left of one behind them
					l.gap += -cols & 7
				}
				for rows := 1; rows <= 5; rows++ {
					for first := 0; first < len(rowsOf); first += rows {
						m := l.random(rows, cols, 1)
						for r := range rows {
							rowsOf[(first+r)%len(rowsOf)](m.Row(r))
						}
						checkArgMax(t, l, d, m)
					}
				}
			})
		}
	}
}

// TestArgMaxAcrossSlices: at the size of a vocabulary, in rows that blocks of a whole GPU share, ties between any slices and what is
// not finite in any slice are found.
func TestArgMaxAcrossSlices(t *testing.T) {
	for _, d := range floatTypes {
		for _, cols := range []int{151665, 151936} {
			t.Run(fmt.Sprintf("%v %d", d, cols), func(t *testing.T) {
				l := newLab(t)
				l.multiprocessors, l.lead, l.gap = 132, 8, 8+(-cols&7)
				slice := argMaxShare(1, cols, l.multiprocessors)
				if n := ceil(cols, slice); n < 32 || n > 132 {
					t.Fatalf("%d slices", n)
				}
				row := make([]float64, cols)
				fill(row, -5)
				x := l.inout(d, ref.Of(1, cols, row))
				if !x.alignedTo(16) {
					t.Fatal("a row that does not begin at a pack")
				}
				ids, best := l.out(tensor.I32, 1, 1), l.out(tensor.F32, 1, 2)
				try := func(what string, values map[int]float64, id, top float64) {
					t.Helper()
					for c, v := range values {
						l.put(x, c, v)
					}
					ArgMax(l.op(), ids, best, x)
					for c := range values {
						l.put(x, c, -5)
					}
					got := append(l.get(ids).V, l.get(best).V...)
					if want := []float64{id, id, top}; !slices.Equal(got, want) && !(math.IsNaN(top) && math.IsNaN(got[2]) && slices.Equal(got[:2], want[:2])) {
						t.Errorf("%s: %v, want %v", what, got, want)
					}
				}
				for from := 0; from < cols; from += slice {
					last := min(from+slice, cols) - 1
					try("ties with the last column", map[int]float64{from: 2, cols - 1: 2}, float64(from), 2)
					try("a tie at the border of slices", map[int]float64{last: 2, (last + 1) % cols: 2}, float64(min(last, (last+1)%cols)), 2)
					try("NaN", map[int]float64{last: math.NaN(), cols / 2: 3}, float64(cols/2), math.NaN())
					try("+Inf", map[int]float64{from: math.Inf(1), cols / 2: 3}, float64(from), math.NaN())
					try("-Inf", map[int]float64{from: math.Inf(-1), last: 7}, float64(last), 7)
				}
			})
		}
	}
}
