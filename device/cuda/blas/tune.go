package blas

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
	"apr/tensor"
)

// Region is device memory that the tuner may overwrite.
type Region struct {
	Ptr   uint64 // a multiple of 256
	Bytes int64
}

// Prewarm makes the plans of all shapes, the expensive ones first. With Options.Tune, candidates of shapes that the file
// does not know are timed on s, with operands in scratch (or in memory allocated for the time when it is too small or
// zero), and the choices are remembered. A shape that the library does not serve is left out and returned. It waits
// until everything has run.
func (l *Library) Prewarm(t *driver.Thread, s driver.Stream, shapes []Shape, scratch Region) (unsupported []Shape, err error) {
	start := time.Now()
	defer func() { l.took += time.Since(start) }()
	l.reread()
	var all []*candidates
	for _, shape := range shapes {
		if _, ok := l.plans[shape]; ok || slices.ContainsFunc(all, func(c *candidates) bool { return c.shape == shape }) {
			continue
		}
		c, err := l.candidates(shape)
		if errors.Is(err, ErrUnsupported) {
			unsupported = append(unsupported, shape)
			continue
		}
		if err != nil {
			for _, made := range all {
				err = errors.Join(err, made.problem.free(l.lt))
			}
			return unsupported, err
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(x, y *candidates) int { return cmp.Compare(y.shape.FLOP(), x.shape.FLOP()) })
	chosen := make([]choice, len(all))
	var open []int // whose algorithms are to be measured
	for i, c := range all {
		chosen[i] = c.remembered(l.known)
		if l.o.Tune && chosen[i].from == fromLibrary {
			open = append(open, i)
		}
	}
	if len(open) > 0 {
		err = l.tune(t, s, all, open, chosen, scratch)
	}
	for i, c := range all {
		l.adopt(c, chosen[i])
	}
	return unsupported, err
}

// reread takes over what the file holds by now: another rank may have measured since it was opened.
func (l *Library) reread() {
	if l.path == "" {
		return
	}
	now, err := readChoices(l.path, l.o.Device, l.lt.Version())
	if err != nil {
		return // Open has said why
	}
	for key, k := range now {
		if _, ok := l.known[key]; !ok {
			l.known[key] = k
		}
	}
}

// tune measures the open shapes and remembers what it chose.
func (l *Library) tune(t *driver.Thread, s driver.Stream, all []*candidates, open []int, chosen []choice, scratch Region) (err error) {
	need := int64(0)
	for _, i := range open {
		need = max(need, all[i].shape.bytes())
	}
	if need > scratch.Bytes {
		p, allocErr := t.Alloc(need, false)
		if allocErr != nil {
			l.o.Log(fmt.Sprintf("kernel-cache event=untuned plans=%d bytes=%d reason=%q", len(open), need, allocErr))
			return nil
		}
		defer func() { err = errors.Join(err, t.Free(p)) }()
		scratch = Region{p, need}
	}
	tuner := &tuner{lib: l, t: t, s: s, scratch: scratch, deadline: time.Now().Add(l.o.Budget)}
	defer func() { err = errors.Join(err, tuner.close()) }()
	if err := tuner.open(l.o.Candidates); err != nil {
		return err
	}
	for _, i := range open {
		c := all[i]
		ch, err := tuner.choose(c)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", c.shape.Key(), err)
		}
		chosen[i] = ch
		l.known[c.shape.Key()] = known{Algo: c.names[ch.index], Ms: c.ms[ch.index]}
	}
	if l.path == "" {
		return nil
	}
	if err := l.known.write(l.path, l.o.Device, l.lt.Version()); err != nil {
		l.o.Log(fmt.Sprintf("kernel-cache event=unwritten file=%q reason=%q", l.path, err))
	}
	return nil
}

// The measurement of one shape: after a warm-up run of each candidate and a first one that says how long it takes, rounds
// of each candidate in turn, so that all meet the same clock and temperature. Candidates far behind are dropped after a
// round; the median of the others' rounds counts, and of almost equal ones the one that the library ranks first.
const (
	rounds      = 3
	roundTime   = 1.0 // ms that the fastest candidate's part of a round takes at least
	maxRepeats  = 200
	heatTime    = 20.0 // ms of load before the first measurement
	hopeless    = 2.0  // times the best, in the first run
	farBehind   = 1.15 // times the best, in the first round
	almostEqual = 1.01
)

// tuner times products.
type tuner struct {
	lib      *Library
	t        *driver.Thread
	s        driver.Stream
	scratch  Region
	events   []driver.Event // before, between and after the candidates of a round
	pattern  unsafe.Pointer // patternBytes of random values
	deadline time.Time
	warmed   bool // the device has been busy
}

// open makes the events and the values that fill the scratch.
func (u *tuner) open(n int) (err error) {
	for range n + 1 {
		e, err := u.t.NewEvent(true)
		if err != nil {
			return err
		}
		u.events = append(u.events, e)
	}
	if u.pattern, err = u.t.HostAlloc(patternBytes); err != nil {
		return err
	}
	normalBF16(unsafe.Slice((*uint16)(u.pattern), patternBytes/2))
	return nil
}

func (u *tuner) close() error {
	var errs []error
	for _, e := range u.events {
		errs = append(errs, u.t.DestroyEvent(e))
	}
	if u.pattern != nil {
		errs = append(errs, u.t.StreamSync(u.s), u.t.HostFree(u.pattern))
	}
	return errors.Join(errs...)
}

// patternBytes is the length of the random values that are repeated over the scratch.
const patternBytes = 1 << 20

// fill writes values of a normal distribution to the part of the scratch that a shape uses: a processor takes less power
// for zeros, and more or less for what another product has left. They are bfloat16; read as float32 a pair of them is
// normal, too: the upper one with a longer mantissa.
func (u *tuner) fill(s Shape) error {
	end := s.bytes()
	n := min(patternBytes, end)
	if err := u.t.CopyHtoD(u.scratch.Ptr, u.pattern, n, u.s); err != nil {
		return err
	}
	for done := n; done < end; {
		m := min(done, end-done)
		if err := u.t.CopyDtoD(u.scratch.Ptr+uint64(done), u.scratch.Ptr, m, u.s); err != nil {
			return err
		}
		done += m
	}
	return nil
}

// normalBF16 fills dst with N(0,1), as the sum of twelve uniform numbers, always the same.
func normalBF16(dst []uint16) {
	state := uint64(0x9e3779b97f4a7c15)
	for i := range dst {
		sum := float32(-6)
		for range 3 {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			for k := range 4 {
				sum += float32(uint16(state>>(16*k))) / 65536
			}
		}
		dst[i] = tensor.F32ToBF16(sum)
	}
}

// bytes returns what the operands take, each at a multiple of 256 plus an odd element if the shape is not aligned.
func (s Shape) bytes() int64 {
	_, _, _, end := s.place(0)
	return int64(end)
}

// place puts the operands behind one another from p on.
func (s Shape) place(p uint64) (a, b, c, end uint64) {
	ma, mb := s.operands()
	in, out := uint64(s.In.BlockBytes()), uint64(s.Out.BlockBytes())
	at := func(n, size uint64) (q uint64) {
		q = p
		if !s.Aligned {
			q += size
		}
		p = (q + n*size + 255) &^ 255
		return q
	}
	a = at(uint64(ma.rows)*uint64(s.LDA), in)
	b = at(uint64(mb.rows)*uint64(s.LDB), in)
	c = at(uint64(s.M)*uint64(s.LDC), out)
	return a, b, c, p
}

// choose times the candidates of one shape.
func (u *tuner) choose(c *candidates) (choice, error) {
	if time.Now().After(u.deadline) || len(c.list) == 1 {
		return choice{0, fromLibrary}, nil
	}
	calls, err := u.warm(c)
	if err != nil {
		return choice{}, err
	}
	times := make([][]float64, len(calls))
	measure := func(repeats int, limit float64, counts bool) (best float64, err error) {
		ms, err := u.round(calls, repeats, c.shape)
		if err != nil {
			return 0, err
		}
		best = slices.Min(ms)
		for i := range calls {
			if !(ms[i] <= limit*best) {
				calls[i] = nil
			} else if counts {
				times[i] = append(times[i], ms[i])
			}
		}
		return best, nil
	}
	if !u.warmed {
		u.warmed = true
		if err := u.heat(calls, c.shape); err != nil {
			return choice{}, err
		}
	}
	best, err := measure(1, hopeless, false)
	repeats := int(min(max(math.Ceil(roundTime/max(best, 1e-6)), 1), maxRepeats))
	for round := 0; err == nil && round < rounds; round++ {
		limit := math.Inf(1)
		if round == 0 {
			limit = farBehind
		}
		_, err = measure(repeats, limit, true)
		if time.Now().After(u.deadline) {
			break
		}
	}
	return choice{fastest(calls, times, c.ms), fromTuning}, err
}

// heat keeps the device busy for a while: its clock falls as its power rises to the limit.
func (u *tuner) heat(calls []*driver.LtCall, s Shape) error {
	ms, err := u.round(calls, 1, s)
	if err != nil {
		return err
	}
	total := 0.0
	for i, call := range calls {
		if call != nil {
			total += ms[i]
		}
	}
	_, err = u.round(calls, int(min(max(heatTime/max(total, 1e-6), 1), maxRepeats)), s)
	return err
}

// fastest writes the medians to ms and returns the first candidate that is about as fast as the best.
func fastest(calls []*driver.LtCall, times [][]float64, ms []float64) int {
	best := math.Inf(1)
	for i, list := range times {
		if calls[i] == nil || len(list) == 0 {
			continue
		}
		slices.Sort(list)
		ms[i] = list[len(list)/2]
		best = min(best, ms[i])
	}
	for i := range calls {
		if calls[i] != nil && len(times[i]) > 0 && ms[i] <= almostEqual*best {
			return i
		}
	}
	return 0
}

// warm fills the operands, prepares the candidates and runs each once, which loads its code. One that fails is nil.
func (u *tuner) warm(c *candidates) ([]*driver.LtCall, error) {
	l, beta := u.lib, float32(0)
	if c.shape.Add {
		beta = 1
	}
	if err := u.fill(c.shape); err != nil {
		return nil, err
	}
	a, b, d, _ := c.shape.place(u.scratch.Ptr)
	calls, some := make([]*driver.LtCall, len(c.list)), false
	if c.shape.Bias {
		*c.problem.bias = d // any values of its type serve
		if err := l.lt.SetPointer(c.problem.lt.Desc, driver.LtBiasPointer, c.problem.bias); err != nil {
			return nil, err
		}
	}
	if c.shape.Compute == FP8 {
		*c.problem.scales = [2]uint64{a, a} // any values serve
		if err := c.problem.point(l.lt); err != nil {
			return nil, err
		}
	}
	for i, candidate := range c.list {
		call := l.lt.NewCall(l.handle, c.problem.lt, candidate.Algo, beta, l.o.Workspace, l.o.Bytes)
		err := call.Start(b, a, d, u.s)
		if err != nil && !refused(err) {
			return nil, err
		}
		if err == nil {
			calls[i], some = call, true
		}
	}
	if !some {
		return nil, errors.New("every algorithm of the library's own choice is refused by it")
	}
	return calls, u.t.StreamSync(u.s)
}

// refused reports whether the library declined an algorithm that it had proposed, which leaves all else intact.
func refused(err error) bool {
	var status *driver.LtError
	return errors.As(err, &status) && (status.Status == driver.LtNotSupported || status.Status == driver.LtInvalidValue)
}

// round runs every candidate repeats times and returns the milliseconds of one run; +Inf for those that are out.
func (u *tuner) round(calls []*driver.LtCall, repeats int, shape Shape) ([]float64, error) {
	a, b, c, _ := shape.place(u.scratch.Ptr)
	if err := u.t.Record(u.events[0], u.s); err != nil {
		return nil, err
	}
	for i, call := range calls {
		for r := 0; call != nil && r < repeats; r++ {
			if err := call.Start(b, a, c, u.s); err != nil {
				return nil, err
			}
		}
		if err := u.t.Record(u.events[i+1], u.s); err != nil {
			return nil, err
		}
	}
	if err := u.t.EventSync(u.events[len(calls)]); err != nil {
		return nil, err
	}
	ms := make([]float64, len(calls))
	for i, call := range calls {
		ms[i] = math.Inf(1)
		if call == nil {
			continue
		}
		d, err := u.t.Elapsed(u.events[i], u.events[i+1])
		if err != nil {
			return nil, err
		}
		ms[i] = d.Seconds() * 1e3 / float64(repeats)
	}
	return ms, nil
}
