//go:build emulate || gpu

package blas

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
)

// sweeper measures fields.
type sweeper struct {
	r           *rig
	plan        sweep
	many        *Library // that asks for plan.ask candidates
	short, load *Library // that choose as the program does
	u           *tuner   // of many
	host        unsafe.Pointer
	meter       *meter
	fields      []*field
}

// sampleBytes is the length of each of the three parts of a result whose bits are compared.
const sampleBytes = 64 << 10

func newSweeper(r *rig, plan sweep) *sweeper {
	r.t.Helper()
	w := &sweeper{r: r, plan: plan}
	for _, s := range plan.shapes {
		w.fields = append(w.fields, &field{shape: s})
	}
	w.many, _ = r.open(Options{Tune: Sustained, Candidates: plan.ask})
	w.short, _ = r.open(Options{Tune: Short})
	w.load, _ = r.open(Options{Tune: Sustained, Large: 1})
	need := int64(0)
	for _, s := range plan.shapes {
		need = max(need, s.bytes()*min((cacheBytes+s.bytes()-1)/s.bytes(), maxSets))
	}
	r.do(func(th *driver.Thread) (err error) {
		w.u = &tuner{lib: w.many, t: th, s: r.stream, scratch: Region{Bytes: need}}
		if w.u.scratch.Ptr, err = th.Alloc(need, false); err != nil {
			return err
		}
		if w.host, err = th.HostAlloc(sampleBytes); err != nil {
			return err
		}
		info, err := th.Driver().Describe(0)
		if err != nil {
			return err
		}
		w.meter = newMeter(info)
		fmt.Printf("%s, cublasLt %d, %d bytes of operands\n", info.Name, r.lt.Version(), need)
		return w.u.open(plan.ask)
	})
	r.t.Cleanup(func() {
		w.meter.close()
		r.do(func(th *driver.Thread) error {
			for _, f := range w.fields {
				if f.c == nil {
					continue
				}
				if err := f.c.problem.free(r.lt); err != nil {
					return err
				}
			}
			if err := th.HostFree(w.host); err != nil {
				return err
			}
			if err := th.Free(w.u.scratch.Ptr); err != nil {
				return err
			}
			return w.u.close()
		})
	})
	return w
}

// chosen returns the algorithm that a Library chooses with its own measurements.
func (w *sweeper) chosen(l *Library, s Shape) (string, error) {
	c, err := l.candidates(s)
	if err != nil {
		return "", err
	}
	u := *w.u
	u.lib, u.deadline = l, time.Now().Add(time.Hour)
	ch, err := u.choose(c, choice{0, fromLibrary})
	if err == nil && l.sustains(s) && ch.from == fromTuning {
		ch, err = u.underLoad(c, turns*finalists*turnTime/2)
	}
	if err != nil {
		return "", err
	}
	return c.names[ch.index], c.problem.free(l.lt)
}

// propose measures what the library proposes.
func (w *sweeper) propose(f *field, end time.Time) (err error) {
	present, err := w.chosen(w.short, f.shape)
	if err != nil {
		return err
	}
	start := time.Now()
	loaded, err := w.chosen(w.load, f.shape)
	if err != nil {
		return err
	}
	f.loadTook = time.Since(start)
	if f.c, err = w.many.candidates(f.shape); err != nil {
		return err
	}
	calls, err := w.u.warm(f.c)
	if err != nil {
		return err
	}
	if f.shape.Bias { // apart from the result, whose bits are compared
		*f.c.problem.bias = w.u.scratch.Ptr
		if err := w.many.lt.SetBias(f.c.problem.lt.Desc, f.c.problem.bias); err != nil {
			return err
		}
	}
	best, err := w.shortRounds(f, calls)
	if err != nil {
		return err
	}
	var list []*trial
	for i, x := range f.all {
		if i == 0 {
			x.marks = append(x.marks, "first")
		}
		if x.name == present {
			x.marks = append(x.marks, "short")
		}
		if x.name == loaded {
			x.marks = append(x.marks, "load")
		}
		if x.short <= hopelessShort*best {
			list = append(list, x)
		}
	}
	f.heading = fmt.Sprintf("%d proposed, %d of them within %.2f of the shortest", len(f.c.list), len(list), hopelessShort)
	slices.SortStableFunc(list, func(x, y *trial) int { return cmp.Compare(x.short, y.short) })
	room := int(time.Until(end) * 2 / 3 / (w.plan.lead + w.plan.timed)) // a third is for second turns
	list = list[:min(len(list), max(room, 2))]
	for _, x := range f.all {
		if len(x.marks) > 0 && !slices.Contains(list, x) && !math.IsInf(x.short, 1) {
			list = append(list, x)
		}
	}
	return w.rounds(f, list, end)
}

// shortRounds makes the trials with their short measurements and returns the best.
func (w *sweeper) shortRounds(f *field, calls []*driver.LtCall) (float64, error) {
	first, err := w.u.round(calls, 1, f.shape)
	if err != nil {
		return 0, err
	}
	repeats := int(min(max(math.Ceil(roundTime/max(slices.Min(first), 1e-6)), 1), maxRepeats))
	var times [2][]float64
	for i := range times {
		if times[i], err = w.u.round(calls, repeats, f.shape); err != nil {
			return 0, err
		}
	}
	best := math.Inf(1)
	for i, call := range calls {
		x := &trial{name: f.c.names[i], from: fmt.Sprintf("h%d", i), algo: f.c.list[i].Algo, call: call, short: min(times[0][i], times[1][i])}
		f.all = append(f.all, x)
		best = min(best, x.short)
	}
	return best, nil
}

// rounds gives every trial of the list a turn, and the contenders a second one, the best first, as long as there is time.
func (w *sweeper) rounds(f *field, list []*trial, end time.Time) error {
	for _, x := range list {
		if err := w.turn(f, x); err != nil {
			return err
		}
	}
	best := f.best(list).load()
	slices.SortStableFunc(list, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
	for _, x := range list {
		if (!(x.load() <= contender*best) || time.Now().After(end)) && len(x.marks) == 0 {
			continue
		}
		if err := w.turn(f, x); err != nil {
			return err
		}
	}
	for _, x := range list {
		if err := w.sample(f, x); err != nil {
			return err
		}
	}
	return nil
}

// turn runs a trial under load.
func (w *sweeper) turn(f *field, x *trial) error {
	start := time.Now()
	ms, err := w.u.load(x.call, f.shape, x.short, w.plan.lead, w.plan.timed)
	if err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	x.turns = append(x.turns, ms)
	x.mhz, x.watts = w.meter.mean(start.Add(w.plan.lead), time.Now())
	return nil
}

// sample runs a trial once into a zeroed result and sums parts of it.
func (w *sweeper) sample(f *field, x *trial) error {
	u, s := w.u, f.shape
	a, b, c, end := s.place(u.scratch.Ptr)
	size := int64(end-c) &^ 255
	if err := u.t.Memset8(c, 0, size, u.s); err != nil {
		return err
	}
	if err := x.call.Start(b, a, c, u.s); err != nil {
		return err
	}
	n := min(sampleBytes, size)
	sum := crc32.NewIEEE()
	for _, at := range []int64{0, size / 2 &^ 15, size - n} {
		n := min(n, size-at)
		if err := u.t.CopyDtoH(w.host, c+uint64(at), n, u.s); err != nil {
			return err
		}
		if err := u.t.StreamSync(u.s); err != nil {
			return err
		}
		sum.Write(unsafe.Slice((*byte)(w.host), n))
	}
	x.bits = sum.Sum32()
	return nil
}
