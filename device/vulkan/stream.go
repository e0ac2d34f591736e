package vulkan

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"apr/device"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
	"apr/tensor"
)

// Stream turns operations into launches, in order.
type Stream struct {
	dev *Device
	err error

	scratch  []*buffer  // of the operation at work
	partials kernel.Mat // of the operation at work
	owed     []sums     // what the device adds up and the host has not read

	scalars device.Scalars
	clock   struct {
		phase device.Phase
		since time.Time
	}
}

// sums are rows of numbers that an operation wrote, and what the host does with one.
type sums struct {
	t   device.Tensor
	add func(row []float32)
}

func newStream(d *Device) *Stream {
	s := &Stream{dev: d}
	s.clock.since = time.Now()
	return s
}

var _ kernel.Queue = (*Stream)(nil)

// Launch records a kernel.
func (s *Stream) Launch(l kernel.Launch) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.dev.dispatch(l); err != nil {
		s.fail(err)
	}
}

// Limit returns how many elements a binding spans at most.
func (s *Stream) Limit() int { return int(s.dev.limit-alignment) / 4 }

// Wide reports whether products take wide tiles.
func (s *Stream) Wide() bool { return s.dev.wide }

// Scratch returns memory until the operation ends.
func (s *Stream) Scratch(rows, cols int) kernel.Mat {
	b := s.dev.temp("scratch of an operation", device.Scratch, 4*int64(rows)*int64(cols))
	s.scratch = append(s.scratch, b)
	return kernel.Mat{Buf: b, Rows: rows, Cols: cols, Row: cols}
}

// Partials is memory for partial sums, until the operation ends.
func (s *Stream) Partials() kernel.Mat {
	if s.partials.IsZero() {
		s.partials = s.Scratch(1, kernel.PartialSums)
	}
	return s.partials
}

// Faults is where kernels note ids that no row has.
func (s *Stream) Faults() kernel.Mat { return kernel.Mat{Buf: s.dev.faults, Rows: 1, Cols: 4, Row: 4} }

// begin reports whether an operation may run.
func (s *Stream) begin() bool {
	if s.err == nil {
		s.dev.mu.Lock()
		s.err = s.dev.lost
		s.dev.mu.Unlock()
	}
	return s.err == nil
}

// end gives the scratch memory of an operation back. What is recorded later runs later, so that it may be used again
// at once.
func (s *Stream) end() {
	for _, b := range s.scratch {
		s.dev.release(b)
	}
	s.scratch, s.partials = s.scratch[:0], kernel.Mat{}
}

// fail keeps the stream's first error.
func (s *Stream) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// lacks fails the stream with what the device does not have.
func (s *Stream) lacks(f device.Feature) {
	s.fail(fault.New(fault.Unavailable, "%s: the Vulkan device does not have it", f).
		WithHint("--backend cpu and --backend cuda do").WithID("E-VULKAN-040"))
}

// Temp returns a tensor with undefined content for use until Release.
func (s *Stream) Temp(name string, c device.Component, d tensor.DType, rows, cols int) device.Tensor {
	return device.Whole(s.dev.temp(name, c, device.TensorBytes(device.OpTemp, d, rows, cols)), d, rows, cols)
}

// Release gives temps back; any view of a temp releases all of it. Zero tensors are ignored.
func (s *Stream) Release(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckRelease(t)
		if !t.IsZero() {
			s.dev.release(t.Buf.(*buffer))
		}
	}
}

// rowBytes is where row r of t begins in its buffer, and its bytes.
func rowBytes(t device.Tensor, r int) (at, n int64) {
	size := int64(t.DType.BlockBytes())
	return size * int64(t.Off+r*t.Stride), size * int64(t.Cols)
}

// put writes the rows of t, which are b without gaps.
func (s *Stream) put(t device.Tensor, b []byte) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	to := t.Buf.(*buffer).place
	if t.Dense() {
		at, _ := rowBytes(t, 0)
		s.dev.write(to, at, b)
		return
	}
	for r := range t.Rows {
		at, n := rowBytes(t, r)
		s.dev.write(to, at, b[int64(r)*n:][:n])
	}
}

// Upload copies host values to t, converting to its type.
func (s *Stream) Upload(t device.Tensor, src []float32) {
	device.CheckUpload(t, src)
	if !s.begin() {
		return
	}
	b := make([]byte, len(src)*t.DType.BlockBytes())
	tensor.Narrow(b, src, t.DType)
	s.put(t, b)
}

// UploadInts copies ids to t, and remembers them.
func (s *Stream) UploadInts(t device.Tensor, src []int32) {
	device.CheckUploadInts(t, src)
	if !s.begin() {
		return
	}
	b := make([]byte, 0, 4*len(src))
	for _, id := range src {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	s.put(t, b)
	buf := t.Buf.(*buffer)
	if len(src) == 0 {
		return
	}
	if n := int(buf.size / 4); len(buf.ids) != n {
		buf.ids = make([]int32, n)
	}
	for r := range t.Rows {
		copy(buf.ids[t.Off+r*t.Stride:][:t.Cols], src[r*t.Cols:])
	}
}

// known checks ids against [0, limit) as far as the host knows them, and fails the stream at the first one outside.
// Ids that the device computed are left to the kernels.
func (s *Stream) known(op string, ids device.Tensor, limit int) bool {
	b, n := ids.Buf.(*buffer), ids.Rows*ids.Cols
	if n == 0 {
		return true
	}
	if b.ids == nil {
		s.dev.mu.Lock()
		s.dev.noted = true
		s.dev.mu.Unlock()
		return true
	}
	for i, id := range b.ids[ids.Off : ids.Off+n] {
		if id < 0 || int(id) >= limit {
			s.fail(outside(op, int64(id), int64(limit)).At("position %d", i))
			return false
		}
	}
	return true
}

// Download copies t to dst and waits; an earlier error of the stream is returned.
func (s *Stream) Download(dst []float32, t device.Tensor) error {
	device.CheckDownload(dst, t)
	if !s.begin() {
		return s.err
	}
	b, err := s.get(t)
	if err == nil {
		err = s.dev.takeFault()
	}
	if err != nil {
		s.fail(err)
		return s.err
	}
	tensor.Widen(dst, b, t.DType)
	return nil
}

// get returns the bytes of the rows of t, without gaps.
func (s *Stream) get(t device.Tensor) ([]byte, error) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	b := make([]byte, t.Rows*t.Cols*t.DType.BlockBytes())
	return b, s.dev.read(b, piecesOf(t))
}

// piecesOf returns the ranges of memory of the rows of t.
func piecesOf(t device.Tensor) (pieces []piece) {
	from := t.Buf.(*buffer).place
	for r := range t.Rows {
		at, n := rowBytes(t, r)
		if t.Dense() {
			n *= int64(t.Rows)
		}
		pieces = append(pieces, piece{place{from.buf, from.at + at}, n})
		if t.Dense() {
			break
		}
	}
	return pieces
}

func word(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }

// RefreshWeight has nothing to do: weights of parameters read Value itself.
func (s *Stream) RefreshWeight(p *device.Param) { device.CheckRefreshWeight(p) }

// owe remembers sums that add will read.
func (s *Stream) owe(t device.Tensor, add func(row []float32)) { s.owed = append(s.owed, sums{t, add}) }

// settle reads what the device added up, all of it at once, and gives it to the record, in order.
func (s *Stream) settle() {
	if len(s.owed) == 0 {
		return
	}
	var pieces []piece
	var n int
	for _, o := range s.owed {
		pieces = append(pieces, piecesOf(o.t)...)
		n += 4 * o.t.Rows * o.t.Cols
	}
	if s.err == nil {
		b := make([]byte, n)
		s.dev.mu.Lock()
		err := s.dev.read(b, pieces)
		s.dev.mu.Unlock()
		if err == nil {
			err = s.dev.takeFault()
		}
		if err != nil {
			s.fail(err)
		} else {
			s.add(b)
		}
	}
	for _, o := range s.owed {
		s.Release(o.t)
	}
	s.owed = s.owed[:0]
}

// add gives the sums to the record.
func (s *Stream) add(b []byte) {
	for _, o := range s.owed {
		row := make([]float32, o.t.Cols)
		for range o.t.Rows {
			for c := range row {
				row[c] = math.Float32frombits(word(b, c))
			}
			o.add(row)
			b = b[4*o.t.Cols:]
		}
	}
}

// SetScalars starts a step's record; the clock of its phases starts with PhaseData.
func (s *Stream) SetScalars(sc device.Scalars) {
	s.settle()
	s.scalars = sc
	s.scalars.Phases = [device.NumPhases]time.Duration{}
	s.clock.phase, s.clock.since = device.PhaseData, time.Now()
}

// Phase marks the beginning of a phase. The previous one ends when the device has done it, so the host waits here.
func (s *Stream) Phase(p device.Phase) {
	device.CheckPhase(p)
	if s.begin() {
		s.wait()
	}
	now := time.Now()
	s.scalars.Phases[s.clock.phase] += now.Sub(s.clock.since)
	s.clock.phase, s.clock.since = p, now
}

// wait waits for everything that was queued.
func (s *Stream) wait() {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.dev.finish(); err != nil {
		s.fail(err)
	}
}

// Wait runs everything to the end and returns the record and the stream's first error, which it clears.
func (s *Stream) Wait(ctx context.Context) (device.Scalars, error) {
	s.settle()
	s.Phase(s.clock.phase)
	if err := s.dev.takeFault(); err != nil {
		s.fail(err)
	}
	err := s.err
	s.err = nil
	if err == nil {
		err = ctx.Err()
	}
	return s.scalars, err
}
