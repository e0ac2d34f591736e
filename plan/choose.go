package plan

import (
	"slices"

	"apr/model"
)

// Request is what is to be planned.
type Request struct {
	BatchSize int // rows asked for at a time
	SeqLen    int
	// What may be chosen from, the best first. One value is a demand.
	MicroRows []int // at most BatchSize; see Splits
	ChunkRows []int
	Recompute []model.Recompute
	Budget    int64 // bytes; 0: not known, and everything fits
	Rates     Rates
}

// Splits returns the sizes of micro-batches that cut a batch evenly, the largest first: ⌈batch/1⌉, ⌈batch/2⌉
// ... 1.
func Splits(batch int) []int {
	var sizes []int
	for parts := 1; ; {
		rows := (batch + parts - 1) / parts
		sizes = append(sizes, rows)
		if rows <= 1 {
			return sizes
		}
		parts = max((batch+rows-2)/(rows-1), parts*5/4) // the least that gives fewer rows; of many parts not every number
	}
}

// enoughPositions is how many positions a micro-batch should have for its matrix products to fill a device.
const enoughPositions = 2048

// stage is a set of settings of about equal worth.
type stage struct {
	small  bool // micro-batches below enoughPositions too
	blocks bool // whole blocks may be computed again
}

// stages are in ascending order of what they cost. Smaller chunks cost next to nothing; norms and SwiGLU again are a
// few passes over memory; blocks again are a third of the student's products; micro-batches below enoughPositions leave
// parts of a device idle.
var stages = []stage{{false, false}, {false, true}, {true, true}}

// settings returns what r allows, the best first: in each stage the largest micro-batch, of equal ones the least
// computed again, of equal ones the largest chunk.
func (r Request) settings() []Setting {
	var all []Setting
	for _, st := range stages {
		for i, micro := range r.MicroRows {
			if i > 0 && !st.small && micro*r.SeqLen < enoughPositions {
				continue
			}
			for j, again := range r.Recompute {
				if j > 0 && again >= model.RecomputeBlocks && !st.blocks {
					continue
				}
				for _, chunk := range r.ChunkRows {
					s := Setting{BatchSize: r.BatchSize, MicroRows: micro, ChunkRows: chunk, Recompute: again}
					if !slices.Contains(all, s) {
						all = append(all, s)
					}
				}
			}
		}
	}
	return all
}

// least returns the setting of r that needs least memory: the smallest micro-batch and chunk, the most computed again.
func (r Request) least() Setting {
	last := len(r.MicroRows) - 1
	return Setting{BatchSize: r.BatchSize, MicroRows: r.MicroRows[last], ChunkRows: r.ChunkRows[len(r.ChunkRows)-1], Recompute: r.Recompute[len(r.Recompute)-1]}
}

// Need returns the bytes of the setting of r that needs least: r can be cut so that it fits if these fit.
func (r Request) Need(step Step) (int64, error) {
	rec, err := step(r.least())
	if err != nil {
		return 0, err
	}
	return rec.Total(), nil
}

// Choose returns the plan of the best setting that fits, or, if none does, of the one that needs least, with verdict
// TooLarge. It does not fill in Largest. The error is the step's. What does not fit with the smallest chunk and the
// most computed again is not tried with more.
func Choose(r Request, step Step) (Plan, error) {
	known := map[Setting]Plan{}
	of := func(s Setting) (Plan, error) {
		p, ok := known[s]
		if ok {
			return p, nil
		}
		rec, err := step(s)
		if err == nil {
			p = Of(s, rec, r.Budget, r.Rates)
			known[s] = p
		}
		return p, err
	}
	all, least := r.settings(), r.least()
	if p, err := of(all[0]); err != nil || p.Verdict == Ready {
		return p, err
	}
	last, err := of(least)
	if err != nil || last.Verdict != Ready {
		return last, err
	}
	for _, s := range all[1:] {
		bottom := least
		bottom.MicroRows = s.MicroRows
		p, err := of(bottom)
		if err == nil && p.Verdict == Ready {
			p, err = of(s)
		}
		if err != nil || p.Verdict == Ready {
			return p, err
		}
	}
	return last, nil
}

// Largest returns the largest n in [1, limit] whose need is at most budget, as far as need grows with n: n fits and
// n+1, if it is not beyond limit, does not. It is 0 if 1 does not fit, and limit if the budget is 0, which means
// unknown. Needs are nearly linear, so it goes where a line through the last two points meets the budget, and halves
// where that does not help.
func Largest(limit int, budget int64, need func(n int) (int64, error)) (int, error) {
	if budget == 0 || limit < 1 {
		return max(0, limit), nil
	}
	type point struct {
		n     int
		bytes int64
	}
	lo, hi := point{}, point{n: limit + 1} // lo fits, hi does not; bytes 0: not asked
	for probe, turn := 1, 0; hi.n-lo.n > 1; turn++ {
		bytes, err := need(probe)
		if err != nil {
			return 0, err
		}
		before, at := lo, point{probe, bytes}
		if bytes <= budget {
			lo = at
		} else if hi = at; lo.n == 0 {
			return 0, nil
		}
		from, to := lo, hi
		if hi.bytes == 0 { // nothing that does not fit is known yet: the line goes through what does
			from, to = before, lo
		}
		probe = lo.n + (hi.n-lo.n)/2
		if slope := float64(to.bytes-from.bytes) / float64(to.n-from.n); from.n > 0 && slope > 0 && turn%3 != 2 {
			probe = lo.n + int(min(float64(budget-lo.bytes)/slope, float64(limit)))
		}
		if hi.bytes == 0 {
			probe = min(probe, 8*lo.n)
		}
		probe = min(max(probe, lo.n+1), hi.n-1)
	}
	return lo.n, nil
}
