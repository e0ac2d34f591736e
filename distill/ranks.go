package distill

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"time"
	"unsafe"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/teacher"
	"apr/tensor"
)

// WorldLeaves is how many parts a step has under --deterministic=world: what one rank adds up is what two, four or
// eight do.
const WorldLeaves = 8

// Ranks says which rows of each step this process computes, and who computes the others.
//
// A step has R rows, those of the global batch, in one order whatever the number of ranks W. Rank r computes rows
// ⌊R·r/W⌋ to ⌊R·(r+1)/W⌋, every row's loss divided by the N of all R rows; gradients and sums of losses are
// then added over the ranks, so that all of them see one gradient, one norm and one verdict, and apply one update.
//
// With Leaves the R rows form so many parts by position, each computed alone, and parts are added as a binary tree of
// neighbours. A rank computes a subtree and the ranks add theirs by the same tree (collective.Comm), so that the bits
// of a step are those of any other W that divides Leaves.
type Ranks struct {
	Comm   collective.Comm // nil: there is one rank
	Leaves int             // 0: as many as ranks; else a power of two that W divides
	Stop   func() bool     // whether this rank wants to end after the step; nil: never
	// Joined says that the trainer's stream is a device.Exchanger: gradients go from device to device.
	Joined bool

	dry bool // Comm is an absent, and nothing has values
}

// alone reports whether a step is computed as one part, which needs no one else.
func (r Ranks) alone() bool { return r.Comm == nil && r.Leaves == 0 }

// World returns W.
func (r Ranks) World() int {
	if r.Comm == nil {
		return 1
	}
	return r.Comm.World()
}

// Rank returns r.
func (r Ranks) Rank() int {
	if r.Comm == nil {
		return 0
	}
	return r.Comm.Rank()
}

// parts returns the leaves [lo,hi) of this rank, and how many there are in all.
func (r Ranks) parts() (lo, hi, all int) {
	if r.Leaves == 0 {
		return r.Rank(), r.Rank() + 1, r.World()
	}
	lo, hi = collective.Shard(r.Leaves, r.Rank(), r.World())
	return lo, hi, r.Leaves
}

// rowsOf returns the rows of a step that this rank computes.
func (r Ranks) rowsOf(b corpus.Batch) corpus.Batch {
	if r.alone() {
		return b
	}
	return b.Slice(r.ownRows(b.Rows))
}

// shared is what a step that is shared with other ranks keeps until its record is complete.
type shared struct {
	parts  [][]device.Tensor // a copy of all gradients for each level of the tree of leaves
	host   []float32         // of a bucket of gradients
	phases [device.NumPhases]time.Duration
	took   time.Duration

	entropy float64
	known   bool
}

// partial are the sums over some rows of a step.
type partial struct {
	device.Scalars         // CE, D, Entropy, Sums, Positions, Agree
	entropy        float64 // of an Estimator
	known          bool
}

// add returns the sums of the rows of both.
func (a partial) add(b partial) partial {
	a.CE, a.D, a.Entropy, a.entropy = a.CE+b.CE, a.D+b.D, a.Entropy+b.Entropy, a.entropy+b.entropy
	a.Positions, a.Agree, a.known = a.Positions+b.Positions, a.Agree+b.Agree, a.known && b.known
	for i := range a.Sums {
		a.Sums[i] += b.Sums[i]
	}
	for i := range a.Phases {
		a.Phases[i] += b.Phases[i]
	}
	return a
}

// complete adds to a step's record what was taken from it between its parts.
func (s *shared) complete(r *Record) {
	for i := range s.phases {
		r.Phases[i] += s.phases[i]
	}
	r.Exchange = s.took
	s.phases, s.took = [device.NumPhases]time.Duration{}, 0
}

// join computes the gradients of this rank's rows of b and adds those of all ranks, so that the record and every
// gradient are the whole step's. An error of this rank is told to the others, who would wait for it.
func (t *Trainer) join(ctx context.Context, b corpus.Batch) error {
	err := t.share(ctx, b)
	if err != nil && t.Ranks.Comm != nil {
		t.Ranks.Comm.Abort(err)
	}
	return err
}

func (t *Trainer) share(ctx context.Context, b corpus.Batch) error {
	lo, hi, all := t.Ranks.parts()
	sum, err := t.subtree(ctx, b, lo, hi, all, 0)
	if err != nil {
		return err
	}
	began := time.Now()
	if t.Ranks.World() > 1 {
		if sum, err = t.exchange(sum, b); err != nil {
			return err
		}
		if err := t.sumGradients(); err != nil {
			return err
		}
	}
	t.shared.took, t.shared.phases, t.shared.entropy, t.shared.known = time.Since(began), sum.Phases, sum.entropy,
		sum.known
	sc := t.scalars()
	sc.CE, sc.D, sc.Entropy = sum.CE, sum.D, sum.Entropy
	sc.Sums, sc.Positions, sc.Agree = sum.Sums, sum.Positions, sum.Agree
	t.stream.SetScalars(sc) // the record of the whole step, which the verdict reads
	return nil
}

// subtree computes leaves [lo,hi) of all, and leaves the sum of their gradients where one leaf's would be. The
// leaves' sums are added as a binary tree of neighbours; a power of two is what hi−lo is.
func (t *Trainer) subtree(ctx context.Context, b corpus.Batch, lo, hi, all, depth int) (partial, error) {
	if hi-lo == 1 {
		from, to := collective.Shard(b.Rows, lo, all)
		return t.leaf(ctx, b, from, to)
	}
	mid := (lo + hi) / 2
	left, err := t.subtree(ctx, b, lo, mid, all, depth+1)
	if err != nil {
		return left, err
	}
	s, saved := t.stream, t.level(depth)
	for i, p := range t.trained() {
		s.Copy(saved[i], p.Grad)
	}
	right, err := t.subtree(ctx, b, mid, hi, all, depth+1)
	if err != nil {
		return right, err
	}
	for i, p := range t.trained() {
		s.Add(p.Grad, saved[i])
	}
	return left.add(right), nil
}

// level returns room for a copy of all gradients.
func (t *Trainer) level(depth int) []device.Tensor {
	for len(t.shared.parts) <= depth {
		t.shared.parts = append(t.shared.parts, nil)
	}
	if t.shared.parts[depth] == nil {
		for _, p := range t.trained() {
			t.shared.parts[depth] = append(t.shared.parts[depth],
				t.Student.Device().Alloc(fmt.Sprintf("%s.leaves%d", p.Name, depth), device.Gradients, tensor.F32, p.Rows, p.Cols))
		}
	}
	return t.shared.parts[depth]
}

// leaf computes the gradients of rows [from,to) of b, and their sums. There may be no rows, or none with a target.
func (t *Trainer) leaf(ctx context.Context, b corpus.Batch, from, to int) (partial, error) {
	part, n := b.Slice(from, to), b.TargetCount()
	estimator, estimates := t.Teacher.(teacher.Estimator)
	send := t.sender(b)
	if part.TargetCount() == 0 {
		t.n = n
		for _, p := range t.trained() {
			t.stream.Zero(p.Grad)
		}
		return partial{known: estimates}, send.all()
	}
	if f, ok := t.Teacher.(teacher.Fetcher); ok {
		if err := f.Fetch(part); err != nil {
			return partial{}, err
		}
	}
	t.batch.At, t.Loss.before = from*b.SeqLen, b.Slice(0, from).TargetCount()
	err := t.gradientsTo(send, part, n)
	t.batch.At, t.Loss.before = 0, 0
	if err != nil {
		return partial{}, err
	}
	sc, err := t.stream.Wait(ctx)
	sum := partial{Scalars: sc}
	if estimates {
		sum.entropy, sum.known = estimator.Entropy()
	}
	return sum, err
}

// exchange adds the sums of all ranks.
func (t *Trainer) exchange(p partial, b corpus.Batch) (partial, error) {
	if !t.overlaps() {
		if err := t.sameBatch(b); err != nil {
			return p, err
		}
	}
	comm, world := t.Ranks.Comm, float64(t.Ranks.World())
	known, stop := 0.0, 0.0
	if p.known {
		known = 1
	}
	if t.Ranks.Stop != nil && t.Ranks.Stop() {
		stop = 1
	}
	x := append([]float64{p.CE, p.D, p.Entropy, p.entropy, known, float64(p.Positions), float64(p.Agree), stop},
		p.Sums[:]...)
	if err := comm.Sum64(x); err != nil {
		return p, err
	}
	p.CE, p.D, p.Entropy, p.entropy, p.known = x[0], x[1], x[2], x[3], x[4] == world
	p.Positions, p.Agree = int64(x[5]), int64(x[6])
	if t.Ranks.dry {
		p.Positions = int64(t.n)
	}
	t.stop = x[7] > 0
	copy(p.Sums[:], x[8:])
	return p, nil
}

// sameBatch refuses ranks that have not read the same batch b of a step, or are not at the same step, before their
// gradients meet.
func (t *Trainer) sameBatch(b corpus.Batch) error {
	comm, world := t.Ranks.Comm, float64(t.Ranks.World())
	same := []float64{float64(b.TargetCount()), float64(t.Steps), float64(t.Optimizer.Applied), float64(checksum(b))}
	x := slices.Clone(same)
	if err := comm.Sum64(x); err != nil {
		return err
	}
	for i, name := range []string{"targets", "steps", "updates", "checksum of the batch"} {
		if x[i] != same[i]*world {
			return fault.New(fault.Invalid,
				"rank %d has %s %.0f, the mean over all %.0f ranks is %.2f: the ranks do not train on the same batch",
				comm.Rank(), name, same[i], world,
				x[i]/world).WithHint("every rank needs the same data, seed and program").WithID("E-RANKS-003")
		}
	}
	return nil
}

// checksum is a CRC-32 of what a batch has.
func checksum(b corpus.Batch) uint32 {
	sum := crc32.ChecksumIEEE(bytesOf(b.Tokens))
	sum = crc32.Update(sum, crc32.IEEETable, bytesOf(b.Targets))
	return crc32.Update(sum, crc32.IEEETable, b.Mask)
}

// bytesOf returns the memory of x.
func bytesOf[T int32 | float32](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// bucket is how many elements of gradients are added at a time, at least, where there are as many.
const bucket = 1 << 20

// buckets calls f with runs of neighbouring parameters that have about a bucket's elements.
func buckets(params []*device.Param, f func(some []*device.Param, elements int) error) error {
	for len(params) > 0 {
		n, elements := 0, 0
		for n < len(params) && elements < bucket {
			elements += params[n].Rows * params[n].Cols
			n++
		}
		if err := f(params[:n], elements); err != nil {
			return err
		}
		params = params[n:]
	}
	return nil
}

// sumGradients replaces every gradient by its sum over the ranks, in float32.
func (t *Trainer) sumGradients() error {
	if t.overlaps() { // they are on their way
		t.stream.(device.Exchanger).Arrive()
		return nil
	}
	if t.Ranks.Joined {
		t.stream.(device.Exchanger).ReduceGradients(t.Ranks.Leaves > 0, t.trained())
		return nil
	}
	if t.Ranks.dry { // see bucketRoom
		return nil
	}
	return buckets(t.trained(), func(some []*device.Param, elements int) error {
		host, err := t.download(some, elements, func(p *device.Param) device.Tensor { return p.Grad })
		if err == nil {
			err = t.Ranks.Comm.Sum32(host)
		}
		if err != nil {
			return err
		}
		for _, p := range some {
			n := p.Rows * p.Cols
			t.stream.Upload(p.Grad, host[:n])
			host = host[n:]
		}
		return nil
	})
}

// bucketRoom returns how many elements the largest bucket of gradients has: so much memory of the host a rank takes
// whose gradients are added there.
func (t *Trainer) bucketRoom() (most int) {
	_ = buckets(t.trained(), func(_ []*device.Param, elements int) error {
		most = max(most, elements)
		return nil
	})
	return most
}

// download copies one companion of some parameters to the host, one behind the other.
func (t *Trainer) download(some []*device.Param, elements int, of func(*device.Param) device.Tensor) ([]float32,
	error) {
	if cap(t.shared.host) < elements {
		t.shared.host = make([]float32, t.bucketRoom())
	}
	host, at := t.shared.host[:elements], 0
	for _, p := range some {
		n := p.Rows * p.Cols
		if err := t.stream.Download(host[at:at+n], of(p)); err != nil {
			return nil, err
		}
		at += n
	}
	return host, nil
}

// Agree compares the weights of all ranks: a checksum of every value. They are the same as long as every rank applies
// the same updates, which a rank of another program, or memory that errs, does not.
func (t *Trainer) Agree() error {
	comm := t.Ranks.Comm
	if comm == nil || comm.World() == 1 {
		return nil
	}
	sums := make([]float64, comm.World())
	var sum uint32
	err := buckets(t.trained(), func(some []*device.Param, elements int) error {
		host, err := t.download(some, elements, func(p *device.Param) device.Tensor {
			if p.Shared(device.OfValue) { // what is the same everywhere is the rounded copy
				t.stream.(device.Exchanger).Widen(p)
			}
			return p.Staging(device.OfValue)
		})
		sum = crc32.Update(sum, crc32.IEEETable, bytesOf(host))
		return err
	})
	if err != nil {
		return err
	}
	sums[comm.Rank()] = float64(sum)
	if err := comm.Sum64(sums); err != nil {
		return err
	}
	for r, s := range sums {
		if s != sums[0] {
			return fault.New(fault.Invalid,
				"after step %d the weights of rank %d are not those of rank 0: checksums %08x and %08x", t.Steps-1, r, uint32(s),
				uint32(sums[0])).
				WithHint("the last checkpoint was written while they agreed").WithID("E-RANKS-004")
		}
	}
	return nil
}
