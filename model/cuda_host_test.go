//go:build gpu || emulate

package model_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/quant"
	"apr/tensor"
)

// rounded is a stored matrix in blocks.
type rounded struct {
	info tensor.Info
	data []byte
}

func (r rounded) Info() tensor.Info { return r.info }

func (r rounded) ReadRows(dst []byte, lo, hi int) error {
	n := int(r.info.DType.RowBytes(r.info.Cols()))
	copy(dst, r.data[lo*n:hi*n])
	return nil
}

// roundExperts puts the experts' matrices into blocks.
func roundExperts(t *testing.T) func(device.Source) device.Source {
	return func(src device.Source) device.Source {
		info := src.Info()
		if !strings.Contains(info.Name, "experts") {
			return src
		}
		raw, values := make([]byte, info.Size), make([]float32, info.Rows()*info.Cols())
		must(t, src.ReadRows(raw, 0, info.Rows()))
		tensor.Widen(values, raw, info.DType)
		info.DType = tensor.Q8_0
		r := rounded{info, make([]byte, info.DType.RowBytes(len(values)))}
		r.info.Size = int64(len(r.data))
		must(t, quant.Quantize(r.data, values, info.DType))
		return r
	}
}

// TestCUDAHostExperts: a teacher whose experts stay in memory of the host gives the bits of one on the device, in the
// memory of the plan to the byte, and each pass fetches the bytes that the plan prices. A CPU refuses it.
func TestCUDAHostExperts(t *testing.T) {
	openEmulator(t)
	c := randomFamily(t, "qwen 3 with experts", 1, 1).config
	c.Hidden = 64
	for i := range c.Layers {
		if m := &c.Layers[i].FFN.MoE; *m != (arch.MoE{}) {
			m.Width = 32
		}
	}
	f := fixtureOf(c, rand.New(rand.NewPCG(8, 9)), 2, 40)
	run := func(d device.Device, form device.Form, between func()) (logits []float32) {
		m, err := model.LoadFrozenThrough(d, f, device.TeacherWeights, form, roundExperts(t))
		must(t, err)
		s := d.NewStream()
		tokens := d.Alloc("ids", device.Batch, tensor.I32, len(f.ids), 1)
		s.UploadInts(tokens, f.ids)
		hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, len(f.ids), c.Hidden)
		z := d.Alloc("z", device.Logits, tensor.F32, len(f.ids), c.Vocab)
		for range 2 {
			m.Hidden(s, hidden, model.Tokens{IDs: tokens, Rows: f.rows, SeqLen: len(f.ids) / f.rows})
			between()
		}
		m.Logits(s, z, hidden)
		logits = make([]float32, len(f.ids)*c.Vocab)
		if _, isDry := d.(*dry.Device); !isDry { // which has no values
			must(t, s.Download(logits, z))
		}
		return logits
	}
	none := func() {}
	host := device.Form{Blocks: true, HostExperts: true}
	for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
		d, err := cuda.Open(cuda.Options{Compute: compute})
		must(t, err)
		var passes []float64
		planned := dry.New(d.Target())
		run(planned, host, func() { passes = append(passes, planned.Record().Cost().Host) })
		rec := planned.Record()
		must(t, d.Prepare(rec))
		if got := d.Stats().Allocated; got != rec.Total() || rec.Host == 0 || rec.Link == 0 {
			t.Errorf("%s: %d bytes taken, %d planned, %d on the host", compute, got, rec.Total(), rec.Host)
		}
		var fetched []int64
		got := run(d, host, func() { fetched = append(fetched, d.Stats().Fetched) })
		if after := d.Stats().Allocated; after != rec.Total() {
			t.Errorf("%s: %d bytes beyond the plan", compute, after-rec.Total())
		}
		if n := fetched[1] - fetched[0]; float64(n) != passes[0] || passes[1] != 2*passes[0] || n != rec.Host {
			t.Errorf("%s: a pass fetches %d bytes, planned %v, of %d", compute, n, passes, rec.Host)
		}
		must(t, d.Close())
		d, err = cuda.Open(cuda.Options{Compute: compute})
		must(t, err)
		if want := run(d, device.Form{Blocks: true}, none); !equalBits(got, want) {
			t.Errorf("%s: logits differ from those of experts on the device", compute)
		}
		must(t, d.Close())
	}
	if _, err := model.LoadFrozenThrough(newCPU(t), f, device.TeacherWeights, host, roundExperts(t)); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a CPU: %v", err)
	}
}
