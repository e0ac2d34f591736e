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

// Splits returns the sizes of micro-batches that cut a batch evenly, the largest first: ⌈batch/1⌉, ⌈batch/2⌉ ... 1.
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

// stages are in ascending order of what they cost. Smaller chunks cost next to nothing; norms and SwiGLU again are a few
// passes over memory; blocks again are a third of the student's products; micro-batches below enoughPositions leave
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

// Choose returns the plan of the best setting that fits, or, if none does, of the one that needs least, with verdict
// TooLarge. It does not fill in LargestBatchSize. The error is the step's.
func Choose(r Request, step Step) (Plan, error) {
	var least Plan
	for i, s := range r.settings() {
		rec, err := step(s)
		if err != nil {
			return least, err
		}
		p := Of(s, rec, r.Budget, r.Rates)
		if p.Verdict == Ready {
			return p, nil
		}
		if i == 0 || p.Memory.Total < least.Memory.Total {
			least = p
		}
	}
	return least, nil
}

// Largest returns the largest n in [1, limit] that fits, 0 if 1 does not. fits must not turn true again once it is false.
func Largest(limit int, fits func(n int) (bool, error)) (int, error) {
	lo, hi := 0, 1 // lo fits; hi is next
	for hi <= limit {
		ok, err := fits(hi)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		if lo = hi; hi == limit {
			return lo, nil
		}
		hi = min(2*hi, limit)
	}
	for hi-lo > 1 { // lo fits, hi does not
		mid := lo + (hi-lo)/2
		ok, err := fits(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}
