package cpu

import (
	"context"
	"encoding/binary"
	"math/bits"
	"time"
	"unsafe"

	"apr/device"
	"apr/device/cpu/gemm"
	"apr/device/cpu/par"
	"apr/device/cpu/q8"
	"apr/device/cpu/vec"
	"apr/tensor"
)

// Stream runs operations at once, each on all workers. Its operations allocate nothing once their scratch has grown.
type Stream struct {
	dev  *Device
	isa  vec.ISA
	pool *par.Pool
	err  error

	free  [numClasses][]*buffer // released temps by size class, the last made first
	made  int                   // temps so far
	prof  profile
	ops   operations
	part  partition
	local []worker
	gemm  *gemm.Engine
	q8    *q8.Engine

	scalars device.Scalars
	clock   struct {
		phase device.Phase
		since time.Time
	}
}

// worker is the scratch memory of one worker; no two tasks use it at once.
type worker struct {
	scores, dscores []float32 // attention: a block of queries by the keys it sees
	q, out, dout    []float32 // attention: the block's rows of q, o and do
	keys, values    []float32 // of AttendPages: the gathered keys and values of one head
	scale           []float32 // attention: the factor of each row
	row             []float32 // loss: a row of logits' size; norms of heads: a head of dy; convolution: its channels of a row
	capped          []float32 // loss and attention: a row of soft-capped values; convolution: what nobody reads
	sums            []float64 // convolution: of the gradient of its taps
	delta           deltaChunk
	gemm            gemm.Workspace
}

// partition is the operation at work: pieces of grain elements of [0, n).
type partition struct {
	n, grain int
	piece    func(worker, lo, hi int)
	task     func(worker, task int)
}

func newStream(d *Device) *Stream {
	s := &Stream{dev: d, isa: d.isa, pool: d.pool, local: make([]worker, d.pool.Workers()), gemm: gemm.New(d.pool), q8: q8.New(d.pool)}
	s.choose(s.gemm.Select)
	s.choose(s.q8.Select)
	for i := range s.local {
		s.choose(s.local[i].gemm.Select)
	}
	s.part.task = s.runPiece
	s.ops.bind(s)
	s.clock.since = time.Now()
	return s
}

// choose gives matrix products the device's instruction set; the packages know the same ones.
func (s *Stream) choose(use func(isa string) error) {
	if err := use(s.isa.String()); err != nil {
		panic(err)
	}
}

// split runs piece over [0,n) in pieces of grain. The pieces depend on n and grain only. Operations pass method values
// bound once, so that nothing is allocated here.
func (s *Stream) split(n, grain int, piece func(worker, lo, hi int)) {
	s.part.n, s.part.grain, s.part.piece = n, grain, piece
	s.pool.Run((n+grain-1)/grain, s.part.task)
}

func (s *Stream) runPiece(worker, task int) {
	p := &s.part
	p.piece(worker, task*p.grain, min(p.n, (task+1)*p.grain))
}

// taskElements is about the work of one task in element-wise operations: some microseconds, well above the cost of
// handing it out.
const taskElements = 16 << 10

// rowGrain returns how many rows of cols elements make one task.
func rowGrain(cols int) int { return max(1, taskElements/max(1, cols)) }

// Temp returns a tensor with undefined content for use until Release.
func (s *Stream) Temp(name string, c device.Component, d tensor.DType, rows, cols int) device.Tensor {
	n := device.TensorBytes(device.OpTemp, d, rows, cols)
	class, size := sizeClass(n)
	var b *buffer
	if list := s.free[class]; len(list) > 0 {
		b = list[len(list)-1]
		s.free[class] = list[:len(list)-1]
		b.name, b.comp = name, c
	} else {
		b = newBuffer(name, c, size)
		b.class, b.number = class, s.made
		s.made++
	}
	b.n, b.state = n, device.Temporary
	s.dev.mem.Add(c, b.size)
	return device.Whole(b, d, rows, cols)
}

// Release gives temps back; any view of a temp releases all of it. Zero tensors are ignored.
func (s *Stream) Release(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckRelease(t)
		if t.IsZero() {
			continue
		}
		b := t.Buf.(*buffer)
		b.state = device.Gone
		s.dev.mem.Add(b.comp, -b.size)
		s.keep(b)
	}
}

// keep puts b into its free list, which stays in descending order of age, so that Temp always takes the oldest: then a
// sequence of Temp and Release gives the same places each time.
func (s *Stream) keep(b *buffer) {
	list := append(s.free[b.class], b)
	i := len(list) - 1
	for ; i > 0 && list[i-1].number < b.number; i-- {
		list[i] = list[i-1]
	}
	list[i] = b
	s.free[b.class] = list
}

// numClasses is more than the classes of any size that memory holds.
const numClasses = 4 * 48

// sizeClass rounds n up to one of four sizes between powers of two, 256 bytes at least, and numbers it.
func sizeClass(n int64) (class int, size int64) {
	const least = 8 // 2⁸ bytes
	n = max(n, 1<<least)
	top := bits.Len64(uint64(n-1)) - 1 // n in (2^top, 2^(top+1)]
	if n == 1<<least {
		return 0, n
	}
	step := int64(1) << (top - 2)
	quarters := (n + step - 1) / step // 5…8
	return 4*(top-least) + int(quarters) - 4, quarters * step
}

// fail keeps the stream's first error.
func (s *Stream) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// mat is a float32 matrix in memory: row r is d[r·stride : r·stride+cols].
type mat struct {
	d                  []float32
	rows, cols, stride int
}

func (m *mat) row(r int) []float32 { return m.d[r*m.stride:][:m.cols] }

// flat returns all elements of a matrix without gaps.
func (m *mat) flat() []float32 { return m.d[:m.rows*m.cols] }

// floats returns the float32 matrix t views. A limit of this device: it computes in no other type.
func floats(t device.Tensor) mat {
	if t.DType != tensor.F32 {
		panic("cpu: a limit of this device: " + t.DType.String() + " tensor where float32 is needed")
	}
	m := mat{rows: t.Rows, cols: t.Cols, stride: t.Stride}
	if t.Rows > 0 && t.Cols > 0 {
		m.d = t.Buf.(*buffer).data[t.Off : t.Off+(t.Rows-1)*t.Stride+t.Cols]
	} else {
		m.stride = 0 // so that the rows of no columns are in d
	}
	return m
}

// optional is floats, with the zero mat for the zero tensor.
func optional(t device.Tensor) mat {
	if t.IsZero() {
		return mat{}
	}
	return floats(t)
}

// ints returns the ids of t, [n,1] or [1,n] without gaps.
func ints(t device.Tensor) []int32 {
	n := t.Rows * t.Cols
	if n == 0 {
		return nil
	}
	d := t.Buf.(*buffer).data
	return unsafe.Slice((*int32)(unsafe.Pointer(&d[0])), len(d))[t.Off : t.Off+n]
}

// rowBytes returns the bytes of row r of t, of any plain type.
func rowBytes(t device.Tensor, r int) []byte {
	d := t.Buf.(*buffer).data
	size := t.DType.BlockBytes()
	if t.Cols == 0 {
		return nil
	}
	all := unsafe.Slice((*byte)(unsafe.Pointer(&d[0])), 4*len(d))
	return all[(t.Off+r*t.Stride)*size:][:t.Cols*size]
}

// Upload copies host values to t, converting to its type.
func (s *Stream) Upload(t device.Tensor, src []float32) {
	device.CheckUpload(t, src)
	if s.err != nil {
		return
	}
	for r := range t.Rows {
		part := src[r*t.Cols : (r+1)*t.Cols]
		if t.DType == tensor.F32 {
			m := floats(t)
			copy(m.row(r), part)
		} else {
			tensor.Narrow(rowBytes(t, r), part, t.DType)
		}
	}
}

// UploadInts copies ids to t.
func (s *Stream) UploadInts(t device.Tensor, src []int32) {
	device.CheckUploadInts(t, src)
	if s.err != nil {
		return
	}
	for r := range t.Rows {
		dst := rowBytes(t, r)
		for i, id := range src[r*t.Cols : (r+1)*t.Cols] {
			binary.NativeEndian.PutUint32(dst[4*i:], uint32(id))
		}
	}
}

// Download copies t to dst; an earlier error of the stream is returned.
func (s *Stream) Download(dst []float32, t device.Tensor) error {
	device.CheckDownload(dst, t)
	if s.err != nil {
		return s.err
	}
	for r := range t.Rows {
		tensor.Widen(dst[r*t.Cols:(r+1)*t.Cols], rowBytes(t, r), t.DType)
	}
	return nil
}

// RefreshWeight makes blocks where a parameter has them. Other weights of parameters read Value itself.
func (s *Stream) RefreshWeight(p *device.Param) {
	device.CheckRefreshWeight(p)
	if len(p.Blocks) > 0 {
		s.quantize([]*device.Param{p}, bySearch)
	}
}

// SetScalars starts a step's record; the clock of its phases starts with PhaseData.
func (s *Stream) SetScalars(sc device.Scalars) {
	s.scalars = sc
	s.scalars.Phases = [device.NumPhases]time.Duration{}
	s.clock.phase, s.clock.since = device.PhaseData, time.Now()
}

// Phase marks the beginning of a phase; the previous one ends here.
func (s *Stream) Phase(p device.Phase) {
	device.CheckPhase(p)
	now := time.Now()
	s.scalars.Phases[s.clock.phase] += now.Sub(s.clock.since)
	s.clock.phase, s.clock.since = p, now
}

// Wait returns the record and the stream's first error, which it clears. Everything has run already, so the context
// does not matter.
func (s *Stream) Wait(context.Context) (device.Scalars, error) {
	s.Phase(s.clock.phase)
	err := s.err
	s.err = nil
	return s.scalars, err
}
