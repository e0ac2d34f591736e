package cuda

import (
	"slices"
	"sync"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
)

// Loss adds the sums over the rows of z and t to the record and writes InvN·∂/∂z of the loss to grad, unless it is zero;
// grad may be z itself, or of the type of activations.
func (s *Stream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	device.CheckLoss(grad, z, t, targets, spec)
	if o := s.begin("Loss", grad, z, t, targets); o != nil && s.known("Loss", targets, z.Cols) {
		kernel.Loss(o, mat(grad), mat(z), mat(t), mat(targets), spec)
		o.end()
	}
}

var _ device.DrawsLoss = (*Stream)(nil)

// LossOfDraws is Loss with a teacher of draws: see device.DrawsLoss.
func (s *Stream) LossOfDraws(grad, z, drawn, targets device.Tensor, n int, spec device.LossSpec) {
	device.CheckLossOfDraws(grad, z, drawn, targets, n, spec)
	if o := s.begin("LossOfDraws", grad, z, drawn, targets); o != nil && s.known("LossOfDraws", targets, z.Cols) &&
		s.known("LossOfDraws", drawn, z.Cols) {
		kernel.LossOfDraws(o, mat(grad), mat(z), mat(drawn), mat(targets), n, spec)
		o.end()
	}
}

// SquaredError adds Σ_r ‖u[r]−t[r]‖²/m to the record and writes grad = weight·InvN·2/m·(u−t).
func (s *Stream) SquaredError(grad, u, t device.Tensor, weight float64) {
	device.CheckSquaredError(grad, u, t, weight)
	if o := s.begin("SquaredError", grad, u, t); o != nil {
		o.sized(u.Rows, u.Cols)
		kernel.SquaredError(o, mat(grad), mat(u), mat(t), weight)
		o.end()
	}
}

// Verdict computes the step's loss, the gradient norm over all params and the clip scale into the record, and whether the
// step is refused.
func (s *Stream) Verdict(params []*device.Param) {
	device.CheckVerdict(params)
	if s.dev.group != nil && sharesAny(params) {
		s.sharedVerdict(params)
		return
	}
	if table, n := s.paramTable(params); table != 0 || n == 0 {
		s.touchAll(params)
		if o := s.begin("Verdict"); o != nil {
			kernel.Verdict(o, table, n)
			o.end()
		}
	}
}

// AdamW updates params and their weights as the record says, and leaves all untouched if the verdict refused the
// step.
func (s *Stream) AdamW(params []*device.Param, a device.AdamW) {
	device.CheckAdamW(params)
	if table, n := s.paramTable(params); table != 0 {
		s.touchAll(params)
		if o := s.begin("AdamW"); o != nil {
			kernel.AdamW(o, table, n, a)
			o.end()
		}
	}
}

// paramTables keeps the tables of the lists of parameters that were used last.
type paramTables struct {
	mu     sync.Mutex
	tables []paramTable
}

// paramTable is a list of parameters as the kernels read it: n pieces in device memory.
type paramTable struct {
	params []*device.Param
	norms  bool // of Stream.norms
	buf    *buffer
	n      int
}

// mostTables bounds the lists that are remembered.
const mostTables = 4

// paramTable returns the table of params; 0 if the stream has failed, or fails, or there is nothing in it.
func (s *Stream) paramTable(params []*device.Param) (table uint64, n int) {
	return s.table(params, false)
}

// table is paramTable, or the table of norms.
func (s *Stream) table(params []*device.Param, norms bool) (table uint64, n int) {
	c := &s.dev.params
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		if t.norms == norms && slices.Equal(t.params, params) {
			return t.buf.place.address(), t.n
		}
	}
	trainables := s.trainables(params)
	pieces := kernel.ParamPieces(trainables)
	if norms {
		pieces = s.norms(params)
	}
	if s.failed() || len(pieces) == 0 {
		return 0, len(pieces)
	}
	all := tableBytes(pieces)
	buf, err := s.dev.take("parameter table", device.Scratch, int64(len(all)), false)
	if err != nil {
		s.fail(err)
		return 0, len(pieces)
	}
	s.dev.internal().uploadBytes("parameter table", buf, all)
	if len(c.tables) == mostTables {
		s.dev.give(c.tables[0].buf)
		c.tables = slices.Delete(c.tables, 0, 1)
	}
	c.tables = append(c.tables, paramTable{slices.Clone(params), norms, buf, len(pieces)})
	return buf.place.address(), len(pieces)
}

// trainables returns where parameters stand; those without memory fail the stream and are left out.
func (s *Stream) trainables(params []*device.Param) (all []kernel.Trainable) {
	for _, p := range params {
		w := p.Weight.(*weight)
		if s.begin("parameters", p.Value, p.Grad, p.M, p.V, w.t) == nil {
			return nil
		}
		for _, r := range portions(p) {
			t := kernel.Trainable{W: mat(r.of(p, device.OfValue)), G: mat(flat(p.Grad, r.lo, r.hi)), M: mat(r.of(p, device.OfM)),
				V: mat(r.of(p, device.OfV)), Decay: p.Decay}
			if w.t != p.Value && len(p.Blocks) == 0 { // of blocks, Quantize makes what is read
				t.Copy = mat(flat(w.t, r.lo, r.hi))
			}
			all = append(all, t)
		}
	}
	return all
}

// uploadBytes sends bytes to a buffer.
func (s *Stream) uploadBytes(op string, b *buffer, src []byte) {
	for lo := 0; lo < len(src); lo += ringBytes {
		part := src[lo:min(lo+ringBytes, len(src))]
		o := s.begin(op)
		if o == nil {
			return
		}
		d, at := s.dev, b.place.address()+uint64(lo)
		d.uploads.send(o, len(part), func(dst []byte) { copy(dst, part) }, func(o *operation, p unsafe.Pointer) {
			o.call(func(t *driver.Thread) error { return t.CopyHtoD(at, p, int64(len(part)), d.stream) })
		})
	}
}
