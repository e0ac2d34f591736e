//go:build gpu

package cuda_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// projectCase is a matrix W [lossVocab, cols]: entries lists the teacher's ids of each column.
type projectCase struct {
	name    string
	entries [][]int32
}

// projectCases are matrices of the sizes of large vocabularies, with the columns in no order of the teacher's ids.
func projectCases() []projectCase {
	rng := rand.New(rand.NewPCG(1, 2))
	columns := func(n int, of func(e [][]int32, ids []int)) [][]int32 {
		e := make([][]int32, n)
		of(e, rng.Perm(lossVocab))
		return e
	}
	one := func(e [][]int32, ids []int) {
		at := rng.Perm(len(e))
		for i, id := range ids {
			e[at[i]] = append(e[at[i]], int32(id))
		}
	}
	return []projectCase{
		{"152k to 152k, one entry a column", columns(lossVocab, one)},
		{"152k to 260k, one entry in 152k columns", columns(260000, one)},
		{"152k to 32k, 1 to 4 entries a column", columns(32000, func(e [][]int32, ids []int) {
			for i := range e {
				n := 1 + rng.IntN(4)
				for _, id := range ids[:n] {
					e[i] = append(e[i], int32(id))
				}
				ids = ids[n:]
			}
		})},
		// Each id goes to one column; the first 300, as of single bytes, get half of them, the first ones thousands.
		{"152k to 32k, half of the ids in 300 columns", columns(32000, func(e [][]int32, _ []int) {
			for id := range lossVocab {
				s := rng.IntN(len(e))
				if id%2 == 0 {
					s = int(300 * math.Pow(rng.Float64(), 3))
				}
				e[s] = append(e[s], int32(id))
			}
		})},
	}
}

// TestProjectSpeed prints the time of moving 8,192 rows to another vocabulary, in calls of 1,024 rows as a step makes
// them, and compares some rows with float64. The goal is 5 % of a step of 250 ms: 12.5 ms.
func TestProjectSpeed(t *testing.T) {
	const rows, calls, rounds = 1024, 8, 10
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	// as a step places them: rows begin at multiples of 16 elements
	length := func(v int) int { return (v+63)/64*64 + 16 }
	x := s.Temp("t", device.Logits, tensor.F32, rows, length(lossVocab)).ColRange(0, lossVocab)
	host := map[int][]float32{}
	for lo := 0; lo < rows; lo += 64 {
		v := bells(64*lossVocab, uint64(lo+1))
		host[lo] = v[:lossVocab]
		s.Upload(x.RowRange(lo, lo+64), v)
	}
	at := make([]int32, rows)
	for r := range at {
		at[r] = int32(rows - 1 - r)
	}
	where := s.Temp("rows", device.Logits, tensor.I32, rows, 1)
	s.UploadInts(where, at)
	for _, c := range projectCases() {
		starts, ids, weights := []int32{0}, []int32{}, []float32{}
		for _, e := range c.entries {
			for range e {
				weights = append(weights, 1)
			}
			ids = append(ids, e...)
			starts = append(starts, int32(len(ids)))
		}
		ints := func(v []int32) device.Tensor {
			m := d.Alloc("W", device.TeacherWeights, tensor.I32, 1, len(v))
			s.UploadInts(m, v)
			return m
		}
		w := device.Projection{Teacher: lossVocab, Starts: ints(starts), IDs: ints(ids)}
		w.Weights = d.Alloc("W", device.TeacherWeights, tensor.F32, 1, len(weights))
		s.Upload(w.Weights, weights)
		cols := len(c.entries)
		all := s.Temp("y", device.Logits, tensor.F32, rows, length(cols))
		y := all.ColRange(0, cols)
		wait := func() {
			if _, err := s.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		best := time.Hour
		for range rounds {
			wait()
			start := time.Now()
			for range calls {
				s.(device.Projector).Project(y, x, w, where, 1)
			}
			wait()
			best = min(best, time.Since(start))
		}
		moved := float64(calls*rows) * 4 * float64(2*lossVocab+cols)
		gathered := float64(calls*rows) * float64(len(ids))
		t.Logf("%-44s %6.2f ms for %d rows, %4.1f %% of 250 ms, %5.0f GB/s, %4.0f e9 entries/s", c.name, best.Seconds()*1e3,
			calls*rows, best.Seconds()/.25*100, moved/best.Seconds()/1e9, gathered/best.Seconds()/1e9)
		for _, r := range []int{0, 64, 960} {
			got := make([]float32, cols)
			if err := s.Download(got, y.RowRange(int(at[r]), int(at[r])+1)); err != nil {
				t.Fatal(err)
			}
			wide := func(v []int32) []int {
				n := make([]int, len(v))
				for i, x := range v {
					n[i] = int(x)
				}
				return n
			}
			ones := make([]float64, len(weights))
			for i := range ones {
				ones[i] = 1
			}
			want := ref.Project(ref.Of(1, lossVocab, host[r]), wide(starts), wide(ids), ones, 1)
			near.Check(t, fmt.Sprintf("%s, row %d", c.name, r), got, want.V, 5e-5)
		}
		s.Release(all)
		d.Free(w.Starts, w.IDs, w.Weights)
	}
}
