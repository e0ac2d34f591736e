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

// roundMany puts matrices into blocks of one of two types, and leaves those of values as they are: so that
// stacks of q, k and v are of several types.
func roundMany(t *testing.T) func(device.Source) device.Source {
	return func(src device.Source) device.Source {
		info := src.Info()
		if info.Cols()%32 != 0 || strings.Contains(info.Name, "v_proj") || strings.Contains(info.Name, "mlp.gate.weight") {
			return src
		}
		raw, values := make([]byte, info.Size), make([]float32, info.Rows()*info.Cols())
		must(t, src.ReadRows(raw, 0, info.Rows()))
		tensor.Widen(values, raw, info.DType)
		info.DType = tensor.Q8_0
		if strings.Contains(info.Name, "k_proj") {
			info.DType = tensor.Q4_0
		}
		r := rounded{info, make([]byte, info.DType.RowBytes(len(values)))}
		r.info.Size = int64(len(r.data))
		must(t, quant.Quantize(r.data, values, info.DType))
		return r
	}
}

// hostPasses runs a model's body twice over 5 sequences, 2 at a time, and returns the logits.
func hostPasses(t *testing.T, f *fixture, d device.Device, form device.Form, between func()) (logits []float32) {
	m, err := model.LoadFrozenThrough(d, f, device.TeacherWeights, form, roundMany(t))
	must(t, err)
	s, c := d.NewStream(), f.config
	tokens := d.Alloc("ids", device.Batch, tensor.I32, len(f.ids), 1)
	s.UploadInts(tokens, f.ids)
	hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, len(f.ids), c.Hidden)
	z := d.Alloc("z", device.Logits, tensor.F32, len(f.ids), c.Vocab)
	for range 2 {
		m.HiddenByLayers(s, hidden, model.Tokens{IDs: tokens, Rows: f.rows, SeqLen: len(f.ids) / f.rows}, 2)
		between()
	}
	m.Logits(s, z, hidden)
	logits = make([]float32, len(f.ids)*c.Vocab)
	if _, isDry := d.(*dry.Device); !isDry { // which has no values
		must(t, s.Download(logits, z))
	}
	return logits
}

// TestCUDAHostLayers: a model whose layers come from the host gives the bits of one on the device, whose
// sequences go through layers in the same groups, in the memory of the plan to the byte. A pass fetches each
// layer once, however many groups there are, and as many bytes as the plan prices. The head and the embedding
// stay on the device. 8-bit floats and a CPU are refused.
func TestCUDAHostLayers(t *testing.T) {
	openEmulator(t)
	host := device.Form{Blocks: true, HostLayers: true}
	for _, name := range []string{"qwen 3", "qwen 3 with experts", "gemma 2"} {
		c := randomFamily(t, name, 1, 1).config
		c.Hidden = 64
		c.Layers = append(append(c.Layers[:len(c.Layers):len(c.Layers)], c.Layers...), c.Layers[0])
		for i := range c.Layers {
			l := &c.Layers[i]
			l.Attn.KVFrom = i
			l.FFN.Width = l.FFN.Width / max(1, l.FFN.Width) * 96
			if m := &l.FFN.MoE; *m != (arch.MoE{}) {
				m.Width = 32
			}
		}
		f := fixtureOf(c, rand.New(rand.NewPCG(8, 9)), 5, 8)
		for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
			d, err := cuda.Open(cuda.Options{Compute: compute})
			must(t, err)
			var passes []float64
			planned := dry.New(d.Target())
			hostPasses(t, f, planned, host, func() { passes = append(passes, planned.Record().Cost().Host) })
			rec := planned.Record()
			must(t, d.Prepare(rec))
			if got := d.Stats().Allocated; got != rec.Total() || rec.Host == 0 || rec.Link == 0 {
				t.Errorf("%s, %s: %d bytes taken, %d planned, %d on the host", name, compute, got, rec.Total(), rec.Host)
			}
			var fetched []int64
			got := hostPasses(t, f, d, host, func() { fetched = append(fetched, d.Stats().Fetched) })
			if after := d.Stats().Allocated; after != rec.Total() {
				t.Errorf("%s, %s: %d bytes beyond the plan", name, compute, after-rec.Total())
			}
			if n := fetched[1] - fetched[0]; float64(n) != passes[0] || passes[1] != 2*passes[0] || n != rec.Host {
				t.Errorf("%s, %s: a pass fetches %d bytes, planned %v, of %d", name, compute, n, passes, rec.Host)
			}
			must(t, d.Close())
			d, err = cuda.Open(cuda.Options{Compute: compute})
			must(t, err)
			want := hostPasses(t, f, d, device.Form{Blocks: true}, func() {})
			if !equalBits(got, want) {
				t.Errorf("%s, %s: logits differ from those of a model on the device", name, compute)
			}
			now, _ := d.Memory()
			if all, rest := now[device.TeacherWeights], rec.Static[device.TeacherWeights]; all <= rest {
				t.Errorf("%s: %d bytes of weights on the device, %d of them without layers", name, all, rest)
			}
			must(t, d.Close())
		}
	}
	f := randomFamily(t, "qwen 3", 1, 4)
	if _, err := model.LoadFrozenAs(newCPU(t), f, device.TeacherWeights, host); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a CPU: %v", err)
	}
}
