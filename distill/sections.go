package distill

import (
	"encoding/binary"
	"fmt"
	"slices"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/run/watch"
	"apr/teacher"
	"apr/tensor"
)

// A teacher that one rank cannot hold is split by layers: the i-th of K teaching ranks has layers ⌊L·i/K⌋ up to
// ⌊L·(i+1)/K⌋. Every learning rank asks the first of them, and the last one answers; between them travels the
// residual stream, between GPUs from memory to memory. Rows of one learning rank are in one section while those of
// another are in the next; a section that passes waits until the next one has room.

// section is a teaching rank's part of the teacher.
type section struct {
	stream device.Stream
	part   *model.Section
	batch  *model.Batch
	dev    device.Device
	most   int // rows that batch has room for
	group  int // rows that go through the layers at a time
	seqLen int
	apart  bool
	paired bool // the residual stream goes from device to device
}

// sectionLayers returns the layers of the i-th of k sections.
func sectionLayers(layers, i, k int) (lo, hi int) { return collective.Shard(layers, i, k) }

// loadSection puts the i-th of k sections on a device, with room for passes of so many rows.
func loadSection(dev device.Device, s device.Stream, w model.Weights, form device.Form, i, k, rows, seqLen int,
	apart bool) (*section, error) {
	lo, hi := sectionLayers(len(w.Arch().Layers), i, k)
	part, err := model.LoadSection(dev, w, device.TeacherWeights, form, lo, hi)
	if err != nil {
		return nil, err
	}
	x := &section{stream: s, part: part, dev: dev, group: teacher.GroupRows(dev.Info(), seqLen), seqLen: seqLen,
		apart: apart}
	x.batch, x.most = model.NewBatch(dev, rows, seqLen), rows
	if apart {
		x.batch.SeparateDocuments(dev)
	}
	return x, nil
}

// through takes the residual stream h + delta of all positions of b through the section; load fills both before it, and
// read takes what they are afterwards. They are the device's until read returns.
func (x *section) through(b corpus.Batch, pending bool,
	load, read func(h, delta device.Tensor, pending bool) error) error {
	s, n, width := x.stream, b.Rows*b.SeqLen, x.part.Config.Hidden
	s.SetScalars(device.Scalars{InvN: 1})
	x.batch.Load(s, b, b.Rows)
	s.Phase(device.PhaseTeacher)
	act := x.dev.Info().Activations
	h := s.Temp("teacher.hidden", device.Activations, act, n, width)
	delta := s.Temp("teacher.delta", device.Activations, act, n, width)
	defer s.Release(h, delta)
	if err := load(h, delta, pending); err != nil {
		return err
	}
	after := pending
	for lo := 0; lo < b.Rows; lo += x.group {
		hi := min(lo+x.group, b.Rows)
		part := func(t device.Tensor) device.Tensor { return t.RowRange(lo*b.SeqLen, hi*b.SeqLen) }
		after = x.part.Through(s, part(h), part(delta), pending, x.batch.Tokens.Slice(lo, hi))
	}
	return read(h, delta, after)
}

// kept calls do with the rows of h that count.
func (x *section) kept(h device.Tensor, do func(kept device.Tensor) error) error {
	if x.batch.Keep.IsZero() {
		return do(h)
	}
	kept := x.stream.Temp("teacher.kept", device.Activations, h.DType, x.batch.N, h.Cols)
	defer x.stream.Release(kept)
	x.stream.Gather(kept, h, x.batch.Keep)
	return do(kept)
}

// download returns a tensor's values in its own type.
func download(s device.Stream, t device.Tensor) ([]byte, error) {
	host, out := make([]float32, t.Rows*t.Cols), make([]byte, t.Rows*t.Cols*t.DType.BlockBytes())
	if err := s.Download(host, t); err != nil {
		return nil, err
	}
	tensor.Narrow(out, host, t.DType) // exact: they are values of this type
	return out, nil
}

// upload is the inverse of download.
func upload(s device.Stream, t device.Tensor, stored []byte) {
	host := make([]float32, t.Rows*t.Cols)
	tensor.Widen(host, stored, t.DType)
	s.Upload(t, host)
}

// relay is what a section tells the next one.
type relay struct {
	learner int    // that asked
	stop    bool   // a rank before this one wants to end
	direct  bool   // the answer is to go from device to device
	rows    []byte // the question
	pending bool   // there is a delta
	h       []byte // the residual stream, and what is still to be added to it; empty: the device passes them
	delta   []byte
}

const relayHead = 4 + 1 + 1 + 1 + 4

func (r relay) encode() []byte {
	flag := map[bool]byte{true: 1}
	x := binary.LittleEndian.AppendUint32(make([]byte, 0, relayHead+len(r.rows)+len(r.h)+len(r.delta)), uint32(r.learner))
	x = append(x, flag[r.stop], flag[r.pending], flag[r.direct])
	x = binary.LittleEndian.AppendUint32(x, uint32(len(r.rows)))
	return slices.Concat(x, r.rows, r.h, r.delta)
}

func decodeRelay(x []byte) (r relay, err error) {
	odd := fault.New(fault.Invalid, "%d bytes of the section before are no residual stream", len(x)).WithID("E-RANKS-067")
	if len(x) < relayHead {
		return r, odd
	}
	r.learner, r.stop, r.pending, r.direct = int(binary.LittleEndian.Uint32(x)), x[4] == 1, x[5] == 1, x[6] == 1
	n := int(binary.LittleEndian.Uint32(x[7:]))
	if x = x[relayHead:]; n > len(x) {
		return r, odd
	}
	r.rows, r.h = x[:n], x[n:]
	if r.pending {
		r.h, r.delta = r.h[:len(r.h)/2], r.h[len(r.h)/2:]
	}
	return r, nil
}

// teach is the work of a section until rank 0 has no more questions.
func (x *section) teach(comm collective.Comm, g Group, vocab int, stopping func() bool, dog *watch.Watchdog) error {
	for n := 0; ; n++ {
		from, text, err := comm.Take(collective.Anyone)
		if err != nil || len(text) == 0 {
			return err
		}
		r := relay{learner: from, rows: text[1:], direct: text[0] == 1}
		if g.Rank > g.World {
			if r, err = decodeRelay(text); err != nil {
				return err
			}
		}
		dog.Doing(fmt.Sprintf("lesson %d, for rank %d", n, r.learner))
		b, err := decodeRows(r.rows)
		if err == nil {
			err = checkRows(b, r.learner, x.seqLen, x.apart, vocab)
		}
		if err == nil && b.Rows > x.most {
			err = tooManyRows(r.learner, b.Rows, x.most)
		}
		if err != nil {
			return err
		}
		r.stop = r.stop || stopping()
		if err := x.answer(comm, g, b, r, dog); err != nil {
			return err
		}
	}
}

// answer takes rows through the section, and sends what comes out of it to the next one, or to the rank that asked.
func (x *section) answer(comm collective.Comm, g Group, b corpus.Batch, r relay, dog *watch.Watchdog) error {
	load := func(h, delta device.Tensor, pending bool) error {
		if g.Rank == g.World {
			return nil
		}
		return x.take(g.Rank-1, r, h, delta, pending)
	}
	return x.through(b, r.pending, load, func(h, delta device.Tensor, pending bool) error {
		if g.Rank == g.All()-1 {
			return x.kept(h, func(kept device.Tensor) error { return x.reply(comm, r, kept, dog) })
		}
		r.pending = pending
		return x.send(comm, g.Rank+1, r, h, delta, dog)
	})
}

// take fills h, and delta if something is pending, with what rank `from` sent.
func (x *section) take(from int, r relay, h, delta device.Tensor, pending bool) error {
	size := h.Rows * h.Cols * h.DType.BlockBytes()
	if x.paired {
		size = 0
	}
	if len(r.h) != size || pending && len(r.delta) != size {
		return fault.New(fault.Invalid, "the section before sent %d bytes instead of %d", len(r.h), size).
			WithID("E-RANKS-067")
	}
	if x.paired {
		s := x.stream.(device.Passer)
		s.Receive(from, h)
		if pending {
			s.Receive(from, delta)
		}
		return nil
	}
	upload(x.stream, h, r.h)
	if pending {
		upload(x.stream, delta, r.delta)
	}
	return nil
}

// send gives h, and delta if something is pending, to the next section.
func (x *section) send(comm collective.Comm, to int, r relay, h, delta device.Tensor, dog *watch.Watchdog) (err error) {
	r.h, r.delta = nil, nil
	if x.paired {
		ts := []device.Tensor{h}
		if r.pending {
			ts = append(ts, delta)
		}
		return give(x.stream, dog, to, func() error { return comm.Post(to, r.encode()) }, ts...)
	}
	if r.h, err = download(x.stream, h); err == nil && r.pending {
		r.delta, err = download(x.stream, delta)
	}
	if err != nil {
		return err
	}
	return comm.Post(to, r.encode())
}

// reply answers the rank that asked with the final hidden states of the positions that count.
func (x *section) reply(comm collective.Comm, r relay, kept device.Tensor, dog *watch.Watchdog) error {
	out := []byte{0}
	if r.stop {
		out[0] = 1
	}
	if r.direct {
		return give(x.stream, dog, r.learner, func() error { return comm.Post(r.learner, out) }, kept)
	}
	states, err := download(x.stream, kept)
	if err != nil {
		return err
	}
	return comm.Post(r.learner, append(out, states...))
}

// planSections runs a pass of every section dry, and returns their records.
func (d DryRun) planSections(rows int) (all []*dry.Record, err error) {
	k := d.Ranks.Teachers
	if layers := len(d.Teacher.Config.Layers); k > layers {
		return nil, fault.New(fault.Usage, "--teacher-split over %d ranks: the teacher has %d layers", k, layers).
			WithID("E-RANKS-068")
	}
	for i := range k {
		dev := dry.New(d.Target())
		x, err := loadSection(dev, dev.NewStream(), d.Teacher, d.Form, i, k, rows, d.SeqLen, d.Apart)
		if err != nil {
			return nil, err
		}
		b := rowBatch(rows, d.SeqLen, d.Apart)
		nothing := func(device.Tensor, device.Tensor, bool) error { return nil }
		for _, last := range []uint8{0, 1} {
			if b.Mask[len(b.Mask)-1] = last; b.TargetCount() == 0 {
				continue
			}
			dev.ResetOps()
			if err := x.through(b, i > 0, nothing, func(h, _ device.Tensor, _ bool) (err error) {
				if i == k-1 {
					err = x.kept(h, func(device.Tensor) error { return nil })
				}
				return err
			}); err != nil {
				return nil, err
			}
		}
		all = append(all, dev.Record())
	}
	return all, nil
}
