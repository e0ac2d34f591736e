//go:build emulate || gpu

package blas

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
	"apr/tensor"
)

// sweep says what TestSustained measures. Every product gets a part of the times, large ones twice as much.
type sweep struct {
	shapes      []Shape
	ask         int           // candidates that the library is asked for
	proposed    time.Duration // for what the library proposes, all products
	changed     time.Duration // for configurations that it accepts beside those, all products
	lead, timed time.Duration // of a turn: not counted, counted
}

const (
	hopelessShort = 1.25 // times the best short measurement of what is proposed
	hopelessOther = 1.10 // the same of changed configurations
	contender     = 1.03 // times the best turn: who gets a second one
)

// TestSustained prints how the algorithms of products rank when they run back to back until the device is at its power
// limit, compared with short measurements: first those that the library proposes, then configurations near the best of
// them. The table has, per algorithm: the library's rank (h0 is its first) or x for a changed configuration; short and
// sustained milliseconds; TFLOP/s, clock and power of the sustained turns; a sum over a part of the result, equal if the
// bits are. "short" and "load" mark what the tuning chooses.
func TestSustained(t *testing.T) {
	r := newRig(t)
	w := newSweeper(r, sustainedSweep)
	w.each(w.plan.proposed, w.propose)
	w.each(w.plan.changed, w.change)
	fmt.Println("\nsummary: TFLOP/s under load of the present choice | of the best of the first 8 proposed | of the best proposed | of what the tuning under load chooses | best changed one against the best proposed")
	for _, f := range w.fields {
		fmt.Println(f.summary())
		if !(f.best(f.all).load() > 0) || math.IsInf(f.best(f.all).load(), 1) {
			t.Errorf("%s: nothing was measured", f.shape.Key())
		}
	}
}

// each calls measure for every product with the end of its part of a time, and prints what is known then.
func (w *sweeper) each(d time.Duration, measure func(f *field, end time.Time) error) {
	weight := func(f *field) time.Duration {
		if f.shape.FLOP() > 1e11 {
			return 2
		}
		return 1
	}
	var parts time.Duration
	for _, f := range w.fields {
		parts += weight(f)
	}
	end := time.Now().Add(d)
	for _, f := range w.fields {
		share := time.Until(end) / parts * weight(f)
		parts -= weight(f)
		w.r.do(func(*driver.Thread) error { return measure(f, time.Now().Add(share)) })
		f.print(w.u.sets(f.shape))
	}
}

// trial is an algorithm on trial.
type trial struct {
	name, from string // from: h and the library's rank, or x
	algo       driver.LtAlgo
	call       *driver.LtCall
	short      float64   // ms
	turns      []float64 // ms under load
	mhz, watts float64   // of the last turn
	bits       uint32
	marks      []string
}

// load returns the mean of the turns; +Inf without.
func (x *trial) load() float64 {
	if len(x.turns) == 0 {
		return math.Inf(1)
	}
	sum := 0.0
	for _, ms := range x.turns {
		sum += ms
	}
	return sum / float64(len(x.turns))
}

// field is a product and the algorithms on trial for it.
type field struct {
	shape    Shape
	c        *candidates
	all      []*trial
	heading  string
	loadTook time.Duration // of the tuning under load

	then float64 // ms under load of the best proposed, when changed configurations were measured
}

// best returns the fastest under load.
func (f *field) best(list []*trial) *trial {
	return slices.MinFunc(list, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
}

func (f *field) marked(mark string) *trial {
	i := slices.IndexFunc(f.all, func(x *trial) bool { return slices.Contains(x.marks, mark) })
	return f.all[max(i, 0)]
}

func (f *field) teraflops(x *trial) float64 { return f.shape.FLOP() / x.load() / 1e9 }

func (f *field) print(sets int) {
	fmt.Printf("\n%s: %.3g FLOP, %d set(s) of operands; %s\n", f.shape.Key(), f.shape.FLOP(), sets, f.heading)
	list := slices.DeleteFunc(slices.Clone(f.all), func(x *trial) bool { return len(x.turns) == 0 })
	slices.SortStableFunc(list, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
	for _, x := range list {
		fmt.Printf("  %-4s %-52s short %8.4f load %8.4f %.4f TFLOP/s %6.1f  %4.0f MHz %3.0f W  bits %08x %s\n",
			x.from, x.name, x.short, x.load(), x.turns, f.teraflops(x), x.mhz, x.watts, x.bits, strings.Join(x.marks, " "))
	}
}

func (f *field) summary() string {
	isChanged := func(x *trial) bool { return x.from == "x" }
	proposed := slices.DeleteFunc(slices.Clone(f.all), isChanged)
	changed := slices.DeleteFunc(slices.Clone(f.all), func(x *trial) bool { return !isChanged(x) })
	best, load := f.best(proposed), f.marked("load")
	line := fmt.Sprintf("%-46s %6.1f | %6.1f | %6.1f %s %s | %6.1f %s in %.1f s", f.shape.Key(), f.teraflops(f.marked("short")),
		f.teraflops(f.best(proposed[:min(len(proposed), 8)])), f.teraflops(best), best.from, best.name, f.teraflops(load), load.from, f.loadTook.Seconds())
	if len(changed) > 0 {
		x := f.best(changed)
		line += fmt.Sprintf(" | %+.1f %% %s", 100*(f.then/x.load()-1), x.name)
	}
	return line
}

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
	return w.rounds(f, list)
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

// rounds gives every trial of the list a turn, and the contenders a second one in reverse order.
func (w *sweeper) rounds(f *field, list []*trial) error {
	for _, x := range list {
		if err := w.turn(f, x); err != nil {
			return err
		}
	}
	best := f.best(list).load()
	slices.Reverse(list)
	for _, x := range list {
		if !(x.load() <= contender*best) && len(x.marks) == 0 {
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

// change measures configurations near the best of what is proposed: other clusters, custom options and swizzles of the
// best three tiles, and other tiles and stages of the best.
func (w *sweeper) change(f *field, end time.Time) error {
	if err := w.u.fill(f.shape); err != nil {
		return err
	}
	before := len(f.all)
	best := f.best(f.all)
	earlier := len(best.turns)
	list, err := w.variants(f, time.Now().Add(time.Until(end)/5))
	if err != nil {
		return err
	}
	limit, err := w.u.load(best.call, f.shape, best.short, 0, 5*time.Millisecond)
	if err != nil {
		return err
	}
	screened := time.Now().Add(time.Until(end) * 2 / 5)
	ran := 0
	for _, x := range list {
		if time.Now().After(screened) {
			break
		}
		err := w.screen(f, x, limit)
		if err != nil {
			return err
		}
		if ran++; x.short <= hopelessOther*limit {
			f.all = append(f.all, x)
		}
	}
	fresh := slices.Clone(f.all[before:])
	f.heading = fmt.Sprintf("%d configurations accepted, %d run, %d of them within %.2f of the best", len(list), ran, len(fresh), hopelessOther)
	slices.SortStableFunc(fresh, func(x, y *trial) int { return cmp.Compare(x.short, y.short) })
	room := int(time.Until(end)*2/3/(w.plan.lead+w.plan.timed)) - 1
	err = w.rounds(f, append([]*trial{best}, fresh[:min(len(fresh), max(room, 1))]...))
	f.then = (&trial{turns: best.turns[earlier:]}).load()
	return err
}

// screen runs a trial, which loads its code, and then once more or for a millisecond. One that the library refuses stays
// at +Inf.
func (w *sweeper) screen(f *field, x *trial, ms float64) error {
	x.short = math.Inf(1)
	a, b, c, _ := f.shape.place(w.u.scratch.Ptr)
	if err := x.call.Start(b, a, c, w.u.s); err != nil {
		if refused(err) {
			return nil
		}
		return fmt.Errorf("%s: %w", x.name, err)
	}
	if err := w.u.t.StreamSync(w.u.s); err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	short, err := w.u.load(x.call, f.shape, ms, 0, time.Millisecond)
	x.short = short
	return err
}

// variants returns accepted configurations that are not on trial yet.
func (w *sweeper) variants(f *field, end time.Time) (list []*trial, err error) {
	lt, seen := w.many.lt, map[string]bool{}
	for _, x := range f.all {
		seen[x.name] = true
	}
	try := func(algo driver.LtAlgo, config map[driver.LtConfigAttribute]uint32) error {
		if time.Now().After(end) {
			return nil
		}
		for part, v := range config {
			if lt.SetConfig(&algo, part, v) != nil {
				return nil // not a value of this algorithm
			}
		}
		got, err := lt.Check(w.many.handle, f.c.problem.lt, algo)
		if err != nil || got.Workspace > workspaceBytes {
			return nil
		}
		name, err := lt.Describe(&algo)
		if err != nil || seen[name] {
			return err
		}
		seen[name] = true
		list = append(list, &trial{name: name, from: "x", algo: algo, call: w.callOf(f, algo)})
		return nil
	}
	bases, err := w.bases(f)
	if err != nil {
		return nil, err
	}
	if err := w.tiles(bases[0].algo, try); err != nil {
		return nil, err
	}
	for _, base := range bases {
		if err := w.options(base.algo, try); err != nil {
			return nil, err
		}
	}
	return list, nil
}

type tryFunc func(driver.LtAlgo, map[driver.LtConfigAttribute]uint32) error

// tiles tries all tiles and stages.
func (w *sweeper) tiles(algo driver.LtAlgo, try tryFunc) error {
	tiles, err := w.many.lt.Capability(&algo, driver.LtTiles)
	if err != nil {
		return err
	}
	stages, err := w.many.lt.Capability(&algo, driver.LtStageIDs)
	if err != nil {
		return err
	}
	for _, tile := range tiles {
		for _, stage := range stages {
			if err := try(algo, map[driver.LtConfigAttribute]uint32{driver.LtTile: tile, driver.LtStages: stage}); err != nil {
				return err
			}
		}
	}
	return nil
}

// options tries all clusters, custom options and swizzles.
func (w *sweeper) options(algo driver.LtAlgo, try tryFunc) error {
	custom, err := w.many.lt.Capability(&algo, driver.LtCustomMax)
	if err != nil {
		return err
	}
	swizzles, err := w.many.lt.Capability(&algo, driver.LtSwizzling)
	if err != nil {
		return err
	}
	const clusters = 40 // numbers of cublasLtClusterShape_t, and some beyond
	for option := range min(custom[0], 64) + 1 {
		for cluster := range uint32(clusters) {
			for swizzle := range min(swizzles[0], 1) + 1 {
				config := map[driver.LtConfigAttribute]uint32{driver.LtCustom: option, driver.LtCluster: cluster, driver.LtSwizzle: swizzle}
				if err := try(algo, config); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// bases returns the best three that differ in algorithm, tile or stages, the best first.
func (w *sweeper) bases(f *field) (list []*trial, err error) {
	all := slices.DeleteFunc(slices.Clone(f.all), func(x *trial) bool { return len(x.turns) == 0 })
	slices.SortStableFunc(all, func(x, y *trial) int { return cmp.Compare(x.load(), y.load()) })
	seen := map[[3]uint32]bool{}
	for _, x := range all {
		var key [3]uint32
		for i, part := range []driver.LtConfigAttribute{driver.LtAlgoID, driver.LtTile, driver.LtStages} {
			if key[i], err = w.many.lt.Config(&x.algo, part); err != nil {
				return nil, err
			}
		}
		if !seen[key] && len(list) < 3 {
			seen[key], list = true, append(list, x)
		}
	}
	return list, nil
}

func (w *sweeper) callOf(f *field, algo driver.LtAlgo) *driver.LtCall {
	c := *f.c
	c.list = []driver.LtCandidate{{Algo: algo}}
	return w.u.call(&c, 0)
}

// meter reads clock and power all the time.
type meter struct {
	mu      sync.Mutex
	samples []reading
	stop    chan struct{}
}

type reading struct {
	at         time.Time
	mhz, watts float64
}

// newMeter returns nil where nothing can be read.
func newMeter(info driver.DeviceInfo) *meter {
	m, err := driver.OpenManagement()
	if err != nil {
		fmt.Println("no clock and power:", err)
		return nil
	}
	d, err := m.Find(info)
	if err != nil {
		fmt.Println("no clock and power:", err)
		return nil
	}
	w := &meter{stop: make(chan struct{})}
	go func() {
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-w.stop:
				tick.Stop()
				return
			case at := <-tick.C:
				mhz, _ := d.Clock() // 0 where it cannot be read
				watts, _ := d.Power()
				w.mu.Lock()
				w.samples = append(w.samples, reading{at, float64(mhz), watts})
				w.mu.Unlock()
			}
		}
	}()
	return w
}

// mean returns the means of the readings of a time; 0 without.
func (w *meter) mean(from, to time.Time) (mhz, watts float64) {
	if w == nil {
		return 0, 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0.0
	for _, s := range w.samples {
		if s.at.After(from) && s.at.Before(to) {
			mhz, watts, n = mhz+s.mhz, watts+s.watts, n+1
		}
	}
	return mhz / max(n, 1), watts / max(n, 1)
}

func (w *meter) close() {
	if w != nil {
		close(w.stop)
	}
}

// trained are products of a training step in bfloat16; a gradient of weights is added to float32.
func trained(op Op, m, n, k int) Shape {
	if op == TN {
		s := dense(op, m, n, k, tensor.BF16, tensor.F32, BF16)
		s.Add = true
		return s
	}
	return dense(op, m, n, k, tensor.BF16, tensor.BF16, BF16)
}
