package distill

import (
	"context"
	"runtime"
	"slices"
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
func (p *precomputation) passOf(keys []cache.Key, at []int) ([][]byte, error) {
	encode, err := p.begin(keys, at)
	if err != nil {
		return nil, err
	}
	return encode()
}

// begin is passOf up to the encoding, for which the device is not needed: the next pass may run meanwhile.
func (p *precomputation) begin(keys []cache.Key, at []int) (encode func() ([][]byte, error), err error) {
	err = p.through(keys, at, func(keys []cache.Key) (err error) {
		encode, err = p.collect(keys)
		return err
	})
	return encode, err
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
	p.stream.SetScalars(device.Scalars{InvN: 1})
	p.batch.Load(p.stream, b, b.Rows)
	p.stream.Phase(device.PhaseTeacher)
	p.teacher.Begin(p.stream, p.batch)
	err := do(keys)
	p.teacher.End(p.stream)
	rec, werr := p.stream.Wait(context.Background())
	if werr != nil {
		return werr
	}
	p.positions += b.Rows * b.SeqLen
	for i, t := range rec.Phases {
		p.phases[i] += t
	}
	return err
}

// collect brings what the teacher says of the rows of the pass to the host, and returns what encodes it.
func (p *precomputation) collect(keys []cache.Key) (encode func() ([][]byte, error), err error) {
	if p.header.Kind == cache.Hidden {
		return p.collectStates(len(keys))
	}
	return p.collectDraws(keys)
}

// encode encodes what the teacher says of the rows of the pass.
func (p *precomputation) encode(keys []cache.Key) ([][]byte, error) {
	encode, err := p.collect(keys)
	if err != nil {
		return nil, err
	}
	return encode()
}

// eachRow encodes n rows with f, several at a time.
func eachRow(n int, f func(r int) ([]byte, error)) ([][]byte, error) {
	out, errs := make([][]byte, n), make([]error, n)
	var wait sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), n)
	for w := range workers {
		wait.Go(func() {
			for r := w; r < n; r += workers {
				out[r], errs[r] = f(r)
			}
		})
	}
	wait.Wait()
	return out, firstError(errs)
}

// collectStates is collect for the hidden states of the first n rows of the pass, which come to the host as the device
// has them. A row is looked through while the next ones are downloaded.
func (p *precomputation) collectStates(n int) (func() ([][]byte, error), error) {
	h := p.header
	out, errs := make([][]byte, n), make([]error, n)
	var wait sync.WaitGroup
	p.stream.Phase(device.PhaseData)
	for r := range n {
		states := p.teacher.Final().RowRange(r*h.SeqLen, (r+1)*h.SeqLen)
		out[r] = make([]byte, h.SeqLen*h.Width*states.DType.BlockBytes())
		if err := device.DownloadStored(p.stream, out[r], states); err != nil {
			wait.Wait()
			return nil, err
		}
		wait.Go(func() { errs[r] = cache.CheckHidden(h, out[r]) })
	}
	return func() ([][]byte, error) {
		wait.Wait()
		if err := firstError(errs); err != nil {
			return nil, fault.New(fault.Inference, "the teacher's %w", err).WithID("E-DISTILL-115")
		}
		return out, nil
	}, nil
}

// firstError returns the first error of errs, nil if all are.
func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// collectDraws is collect for draws. Where the device draws, logits never leave it; elsewhere they are downloaded, and
// drawn from on the host, with the same ids.
func (p *precomputation) collectDraws(keys []cache.Key) (func() ([][]byte, error), error) {
	h, width := p.header, p.header.Draws+device.ManySums
	n := len(keys) * h.SeqLen
	host := make([]float32, n*width)
	if drawsThere(p.dev.Info()) {
		ints := make([]int32, 0, 3*n)
		for _, k := range keys {
			key := teacher.DrawKey(h.Seed, k)
			for position := range h.SeqLen {
				ints = append(ints, int32(key[0]), int32(key[1]), int32(position))
			}
		}
		out, release := drawPass(p.stream, p.teacher, h, n, ints)
		err := p.stream.Download(host, out.RowRange(0, n))
		if release(); err != nil {
			return nil, err
		}
	} else if err := p.eachLogits(n, func(lo, hi int, logits []float32) {
		p.sample(host, logits, keys, lo, hi)
	}); err != nil {
		return nil, err
	}
	return func() ([][]byte, error) {
		return eachRow(len(keys), func(r int) ([]byte, error) {
			return encodeDrawn(h, host[r*h.SeqLen*width:(r+1)*h.SeqLen*width])
		})
	}, nil
}

// encodeDrawn encodes a row: drawn has for each position what device.DrawManyRow writes.
func encodeDrawn(h cache.Header, drawn []float32) ([]byte, error) {
	d, one := teacher.Drawer{}, cache.Drawn{From: []int32{0}}
	width := len(drawn) / h.SeqLen
	for at := range h.SeqLen {
		var entropy float64
		var err error
		one.Entries, entropy, err = d.Read(one.Entries, drawn[at*width:(at+1)*width], h.Vocab, at)
		if err != nil {
			return nil, fault.New(fault.Inference, "%w", err).WithID("E-DISTILL-115")
		}
		one.From = append(one.From, int32(len(one.Entries)))
		if h.Entropy {
			one.Entropy = append(one.Entropy, float32(max(entropy, 0)))
		}
	}
	return cache.EncodeDraws(h, one)
}

// drawsThere reports whether a device draws many ids where the logits are.
func drawsThere(info device.Info) bool { return !slices.Contains(info.Lacks, device.DrawsMany) }

// drawPass draws at the first n positions of the pass that t has begun, with keys as device.ManyDrawer has them, and
// returns [≥ n, Draws+ManySums]. Chunks have the same positions whatever n is, so that logits have the same bits.
func drawPass(s device.Stream, t *teacher.Resident, h cache.Header, n int, keys []int32) (out device.Tensor,
	release func()) {
	group := h.PassRows * h.SeqLen
	whole := (n + group - 1) / group * group
	out = s.Temp("drawn", device.Logits, tensor.F32, whole, h.Draws+device.ManySums)
	at := s.Temp("drawn.keys", device.Logits, tensor.I32, 3*whole, 1)
	rows := min(h.ChunkRows, group)
	chunk := s.Temp("logits.teacher", device.Logits, tensor.F32, rows, rowLength(h.Vocab)).
		ColRange(0, cachedColumns(t, h))
	s.UploadInts(at, append(keys, make([]int32, 3*whole-len(keys))...))
	d := s.(device.ManyDrawer)
	_ = eachChunk(h, n, func(lo, hi int) error {
		z := chunk.RowRange(0, hi-lo)
		t.Logits(s, lo, hi, z)
		s.Phase(device.PhaseLoss)
		last := min(hi, n) // what fills the pass is not drawn from
		z = z.ColRange(0, h.Vocab)
		d.DrawMany(out.RowRange(lo, last), z.RowRange(0, last-lo), at.RowRange(3*lo, 3*last), h.Temperature)
		s.Phase(device.PhaseTeacher)
		return nil
	})
	s.Phase(device.PhaseData)
	s.Release(chunk)
	return out, func() { s.Release(out, at) }
}

// cachedColumns is productColumns of a teacher's logits.
func cachedColumns(t *teacher.Resident, h cache.Header) int {
	return productColumns(t.Model.Device().Info().Activations, h.Vocab, t.HeadRows())
}

// eachLogits downloads the logits of the first n positions of the pass, chunk by chunk: those of positions [lo,hi) are
// in host.
func (p *precomputation) eachLogits(n int, do func(lo, hi int, host []float32)) error {
	h := p.header
	rows := min(h.ChunkRows, h.PassRows*h.SeqLen)
	chunk := p.stream.Temp("logits.teacher", device.Logits, tensor.F32, rows, rowLength(h.Vocab)).
		ColRange(0, cachedColumns(p.teacher, h))
	defer p.stream.Release(chunk)
	host := make([]float32, chunk.Rows*h.Vocab)
	return eachChunk(h, n, func(lo, hi int) error {
		t := chunk.RowRange(0, hi-lo)
		p.teacher.Logits(p.stream, lo, hi, t)
		if err := p.stream.Download(host[:t.Rows*h.Vocab], t.ColRange(0, h.Vocab)); err != nil {
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

// sample draws at positions [lo,hi) of the pass, whose logits are in host, into dst.
func (p *precomputation) sample(dst, host []float32, keys []cache.Key, lo, hi int) {
	h, width := p.header, p.header.Draws+device.ManySums
	var wait sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), hi-lo)
	for w := range workers {
		wait.Go(func() {
			weights := make([]uint64, h.Vocab)
			for at := lo + w; at < hi; at += workers {
				key := teacher.DrawKey(h.Seed, keys[at/h.SeqLen])
				device.DrawManyRow(dst[at*width:(at+1)*width], host[(at-lo)*h.Vocab:(at-lo+1)*h.Vocab], weights, key,
					uint32(at%h.SeqLen), h.Temperature)
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
	switch n := min(h.ChunkRows, h.PassRows*h.SeqLen); {
	case h.Kind != cache.Draws:
	case drawsThere(dev.Info()):
		_, release := drawPass(s, t, h, groups*h.PassRows*h.SeqLen, nil)
		release()
	default:
		chunk := s.Temp("logits.teacher", device.Logits, tensor.F32, n, rowLength(h.Vocab)).
			ColRange(0, cachedColumns(t, h))
		t.Logits(s, 0, n, chunk)
		s.Release(chunk)
	}
	t.End(s)
}
