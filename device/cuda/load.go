package cuda

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"apr/device/cuda/driver"
	"apr/internal/fault"
	"apr/tensor"
)

// pieces is pinned memory for weights on their way to the device: pieces of a file are read and decoded by several
// goroutines while others are copied.
type pieces struct {
	mu   sync.Mutex
	made int
	free chan *piece
}

// piece is pinned memory of pieceBytes, made when there is no other. The event is recorded behind the last copy out of it.
type piece struct {
	p     unsafe.Pointer
	event driver.Event
	busy  bool
}

const (
	pieceBytes  = 8 << 20
	mostReaders = 8  // goroutines: from the page cache to pinned memory each brings about 5 GB/s
	mostPieces  = 12 // one for each reader, and some on their way
)

// take returns a piece of which the last copy has arrived.
func (c *pieces) take(d *Device) (*piece, error) {
	p, err := c.next(d)
	if err != nil || !p.busy {
		return p, err
	}
	p.busy = false
	d.counts.waits.Add(1)
	if err := d.ctx.Do(func(t *driver.Thread) error { return t.EventSync(p.event) }); err != nil {
		c.free <- p
		return nil, d.explain("the loading of weights", err)
	}
	return p, nil
}

// next returns the piece that was given back first, or a new one.
func (c *pieces) next(d *Device) (*piece, error) {
	c.mu.Lock()
	if c.free == nil {
		c.free = make(chan *piece, mostPieces)
	}
	grow := c.made < mostPieces && len(c.free) == 0
	if grow {
		c.made++
	}
	c.mu.Unlock()
	if !grow {
		return <-c.free, nil
	}
	p := &piece{}
	err := d.ctx.Do(func(t *driver.Thread) (err error) {
		if p.p, err = d.pin(t, pieceBytes); err == nil {
			p.event, err = t.NewEvent(false)
		}
		return err
	})
	if err != nil {
		c.mu.Lock()
		c.made--
		c.mu.Unlock()
		return nil, d.explain("the loading of weights", err)
	}
	return p, nil
}

// release frees the pinned memory.
func (c *pieces) release(t *driver.Thread) error {
	for ; c.made > 0; c.made-- {
		p := <-c.free
		if err := t.HostFree(p.p); err != nil {
			return err
		}
		if err := t.DestroyEvent(p.event); err != nil {
			return err
		}
	}
	return nil
}

// place of rows in device memory, dense, in a type that may be one of blocks.
type rowsAt struct {
	ptr        uint64
	from       int // row of the part that comes first
	rows, cols int
	dtype      tensor.DType
}

func (r rowsAt) rowBytes() int { return int(r.dtype.RowBytes(r.cols)) }

// read fills dst with the rows of a part.
func (d *Device) read(dst rowsAt, p *part) error {
	if dst.rows == 0 || dst.cols == 0 {
		return nil
	}
	if p.size == 0 {
		p.data = make([]byte, p.info.Size)
		if err := p.src.ReadRows(p.data, 0, p.info.Rows()); err != nil {
			return err
		}
	}
	rowBytes := dst.rowBytes()
	step := pieceBytes / max(rowBytes, p.size)
	if step == 0 {
		return fault.New(fault.Load, "rows of %d bytes are longer than the device takes", max(rowBytes, p.size)).
			At("tensor %q", p.info.Name).WithID("E-CUDA-033")
	}
	// Small enough for the readers to end together, large enough for a copy to be worth its start.
	readers := min(mostReaders, runtime.GOMAXPROCS(0))
	step = min(step, max(dst.rows/(4*readers), (1<<20)/rowBytes, 1))
	var next atomic.Int64
	var failed failure
	var wait sync.WaitGroup
	for range min(readers, (dst.rows+step-1)/step) {
		wait.Go(func() {
			r := reader{dev: d, part: p, dst: dst, failed: &failed}
			for failed.get() == nil {
				lo := int(next.Add(int64(step))) - step
				if lo >= dst.rows {
					return
				}
				failed.set(r.rows(lo, min(lo+step, dst.rows)))
			}
		})
	}
	wait.Wait()
	p.data = nil
	// What the device's thread met is known once it has come here.
	if err := d.ctx.Do(func(*driver.Thread) error { return nil }); err != nil {
		return err
	}
	return failed.get()
}

// reader reads rows of a part, in a goroutine of its own.
type reader struct {
	dev    *Device
	part   *part
	dst    rowsAt
	raw    []byte    // stored rows
	row    []float32 // a decoded row
	failed *failure
}

// rows reads, decodes and sends rows [lo,hi).
func (r *reader) rows(lo, hi int) error {
	d, p := r.dev, r.part
	piece, err := d.pieces.take(d)
	if err != nil {
		return err
	}
	n := (hi - lo) * r.dst.rowBytes()
	err = r.fill(unsafe.Slice((*byte)(piece.p), n), r.dst.from+lo, r.dst.from+hi)
	if err != nil || d.lostError() != nil {
		d.pieces.free <- piece
		return err
	}
	at := r.dst.ptr + uint64(lo*r.dst.rowBytes())
	piece.busy = true
	failed := r.failed
	d.queue("the loading of tensor "+p.info.Name, func(t *driver.Thread) error {
		err := t.CopyHtoD(at, piece.p, int64(n), d.stream)
		if err == nil {
			err = t.Record(piece.event, d.stream)
		}
		failed.set(d.explain("the loading of tensor "+p.info.Name, err))
		return nil // it is the weight's error, not the device's
	})
	d.pieces.free <- piece
	return nil
}

// fill writes rows [lo,hi) to dst as the device keeps them.
func (r *reader) fill(dst []byte, lo, hi int) error {
	p := r.part
	if p.size == 0 {
		return r.decode(dst, lo, hi)
	}
	if p.info.DType == r.dst.dtype {
		return p.src.ReadRows(dst, lo, hi)
	}
	if n := (hi - lo) * p.size; cap(r.raw) < n {
		r.raw = make([]byte, n)
	}
	r.raw = r.raw[:(hi-lo)*p.size]
	if err := p.src.ReadRows(r.raw, lo, hi); err != nil {
		return err
	}
	return r.decode(dst, lo, hi)
}

func (r *reader) decode(dst []byte, lo, hi int) error {
	if r.row == nil {
		r.row = make([]float32, r.dst.cols)
	}
	r.part.decode(dst, r.dst.dtype, r.raw, lo, hi-lo, r.row)
	return nil
}
