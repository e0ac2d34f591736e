package distill

import (
	"context"
	"math"
	"runtime"
	"sync"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
	"apr/teacher/cache"
	"apr/tensor"
)

// load loads the teacher.
func (p *precomputation) load() error {
	if d, ok := p.dev.(dry.Preparer); ok && p.way.record != nil {
		if err := d.Prepare(p.way.record); err != nil {
			return err
		}
	}
	m, err := model.LoadFrozenAs(p.dev, p.in.teacher, device.TeacherWeights, p.way.form)
	if err != nil {
		return err
	}
	p.stream, p.teacher = p.dev.NewStream(), &teacher.Resident{Model: m, Group: p.header.PassRows}
	p.batch = model.NewBatch(p.dev, p.header.PassRows*p.way.groups, p.c.SeqLen)
	if p.c.DocumentMask {
		p.batch.SeparateDocuments(p.dev)
	}
	return nil
}

// pass runs the teacher over rows [lo,hi) of the cache and encodes what it says.
func (p *precomputation) pass(lo, hi int) (out [][]byte, err error) {
	return p.passOf(p.keys[lo:hi], p.at[lo:hi])
}

// passOf runs the teacher over rows of the data, whose keys these are, and encodes what it says.
func (p *precomputation) passOf(keys []cache.Key, at []int) (out [][]byte, err error) {
	err = p.through(keys, at, func(keys []cache.Key) (err error) {
		out, err = p.encode(keys)
		return err
	})
	return out, err
}

// onePass runs the teacher over rows [lo,hi) of the cache, and then do while their hidden states are there.
// Passes have whole groups of PassRows rows, each of which has the same shape: the last row fills it.
func (p *precomputation) onePass(lo, hi int, do func(keys []cache.Key) error) error {
	return p.through(p.keys[lo:hi], p.at[lo:hi], do)
}

// through is onePass over these rows of the data.
func (p *precomputation) through(keys []cache.Key, at []int, do func(keys []cache.Key) error) error {
	groups := (len(keys) + p.header.PassRows - 1) / p.header.PassRows
	b := rowBatch(groups*p.header.PassRows, p.c.SeqLen, p.c.DocumentMask)
	for r := range b.Rows {
		fillBatch(b, r, p.in.rows, at[min(r, len(at)-1)])
	}
	p.stream.Phase(device.PhaseTeacher)
	p.batch.Load(p.stream, b, b.Rows)
	p.stream.SetScalars(device.Scalars{InvN: 1})
	p.teacher.Begin(p.stream, p.batch)
	err := do(keys)
	p.teacher.End(p.stream)
	if _, werr := p.stream.Wait(context.Background()); werr != nil {
		return werr
	}
	return err
}

// encode encodes what the teacher says of the rows of the pass.
func (p *precomputation) encode(keys []cache.Key) ([][]byte, error) {
	if p.job.Kind == cache.Hidden {
		return p.states(len(keys))
	}
	return p.draw(keys)
}

// states encodes the hidden states of the first n rows of the pass.
func (p *precomputation) states(n int) (out [][]byte, err error) {
	host := make([]float32, p.header.SeqLen*p.header.Width)
	for r := range n {
		if err := p.stream.Download(host, p.teacher.Final().RowRange(r*p.header.SeqLen, (r+1)*p.header.SeqLen)); err != nil {
			return nil, err
		}
		for _, v := range host {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return nil, fault.New(fault.Inference, "the teacher's hidden states are not finite").WithID("E-DISTILL-115")
			}
		}
		b, err := cache.EncodeHidden(p.header, host)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// position is what was drawn at a position.
type position struct {
	entries []cache.Entry
	entropy float64
	err     error
}

// draw draws at every position of the rows of the pass, and encodes what was drawn.
func (p *precomputation) draw(keys []cache.Key) (out [][]byte, err error) {
	h := p.header
	all := make([]position, len(keys)*h.SeqLen)
	err = p.eachLogits(len(all), func(lo, hi int, host []float32) { p.sample(all[lo:hi], host, keys, lo) })
	if err != nil {
		return nil, err
	}
	for r := range keys {
		d := cache.Drawn{From: []int32{0}}
		for _, at := range all[r*h.SeqLen : (r+1)*h.SeqLen] {
			if at.err != nil {
				return nil, fault.New(fault.Inference, "%w", at.err).WithID("E-DISTILL-115")
			}
			d.Entries = append(d.Entries, at.entries...)
			d.From = append(d.From, int32(len(d.Entries)))
			if h.Entropy {
				d.Entropy = append(d.Entropy, float32(max(at.entropy, 0)))
			}
		}
		b, err := cache.EncodeDraws(h, d)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// eachLogits downloads the logits of the first n positions of the pass, chunk by chunk: those of positions [lo,hi) are in host.
func (p *precomputation) eachLogits(n int, do func(lo, hi int, host []float32)) error {
	h := p.header
	rows := min(h.ChunkRows, h.PassRows*h.SeqLen)
	chunk := p.stream.Temp("logits.teacher", device.Logits, tensor.F32, rows, rowLength(h.Vocab)).ColRange(0, h.Vocab)
	defer p.stream.Release(chunk)
	host := make([]float32, chunk.Rows*h.Vocab)
	return eachChunk(h, n, func(lo, hi int) error {
		t := chunk.RowRange(0, hi-lo)
		p.teacher.Logits(p.stream, lo, hi, t)
		if err := p.stream.Download(host[:t.Rows*h.Vocab], t); err != nil {
			return err
		}
		do(lo, min(hi, n), host)
		return nil
	})
}

// eachChunk calls f for the chunks that have the first n positions of a pass: they are cut from each group of
// PassRows rows, whatever counts.
func eachChunk(h cache.Header, n int, f func(lo, hi int) error) error {
	whole := h.PassRows * h.SeqLen
	for first := 0; first < n; first += whole {
		for lo := first; lo < min(first+whole, n); lo += h.ChunkRows {
			if err := f(lo, min(lo+h.ChunkRows, first+whole)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sample draws at positions whose logits are in host, the first of which is position first of the pass.
func (p *precomputation) sample(dst []position, host []float32, keys []cache.Key, first int) {
	var wait sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), len(dst))
	for w := range workers {
		wait.Go(func() {
			d := teacher.Drawer{Temperature: p.header.Temperature, Draws: p.header.Draws, Seed: p.header.Seed}
			for i := w; i < len(dst); i += workers {
				at := first + i
				o := &dst[i]
				o.entries, o.entropy, o.err = d.Draw(nil, host[i*p.header.Vocab:(i+1)*p.header.Vocab], keys[at/p.header.SeqLen], at%p.header.SeqLen)
			}
		})
	}
	wait.Wait()
}

// dryPass does on a device that computes nothing what a pass of so many groups does there, and keeps its batch.
func dryPass(dev device.Device, s device.Stream, h cache.Header, groups int, m *model.Model, apart bool) {
	batch := model.NewBatch(dev, groups*h.PassRows, h.SeqLen)
	if apart {
		batch.SeparateDocuments(dev)
	}
	b := rowBatch(groups*h.PassRows, h.SeqLen, apart)
	t := &teacher.Resident{Model: m, Group: h.PassRows}
	batch.Load(s, b, b.Rows)
	s.SetScalars(device.Scalars{InvN: 1})
	t.Begin(s, batch)
	if n := min(h.ChunkRows, h.PassRows*h.SeqLen); h.Kind == cache.Draws {
		chunk := s.Temp("logits.teacher", device.Logits, tensor.F32, n, rowLength(h.Vocab)).ColRange(0, h.Vocab)
		t.Logits(s, 0, n, chunk)
		s.Release(chunk)
	}
	t.End(s)
}
