package modelfile_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// fp4 are the values of four bits by their definition: sign, two bits of exponent with bias 1, one of mantissa.
func fp4(b byte) float64 {
	sign, e, m := 1-2*float64(b>>3), int(b>>1&3), float64(b&1)
	if e == 0 {
		return sign * m / 2
	}
	return sign * math.Ldexp(1+m/2, e-1)
}

// checkReads: any part of a slot is the bytes that the whole has there.
func checkReads(t *testing.T, f *modelfile.Files, name string) {
	t.Helper()
	s, _ := f.File.Tensor(name)
	whole := bytesOf(t, s.Source())
	rng := rand.New(rand.NewPCG(4, 2))
	for range 50 {
		lo := rng.IntN(len(whole))
		part := make([]byte, rng.IntN(len(whole)-lo+1))
		if n, err := s.ReadAt(part, int64(lo)); n != len(part) || err != nil || !bytes.Equal(part, whole[lo:lo+n]) {
			t.Fatalf("%s: bytes [%d,%d) are others: %v", name, lo, lo+len(part), err)
		}
	}
}

func bytesOf(t *testing.T, s tensor.Source) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, s.Payload(&b))
	return b.Bytes()
}

// TestMXFP4: gate and up of alternating rows, and down, come out as blocks of 32 with a scale each, and go back byte for byte; a
// short file is refused, and experts of two types are not written.
func TestMXFP4(t *testing.T) {
	text := `{"model_type":"gpt_oss","hidden_size":64,"intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":32,` +
		`"vocab_size":64,"num_local_experts":3,"num_experts_per_tok":2,"quantization_config":{"quant_method":"mxfp4"}}`
	c, err := arch.Parse("config.json", text, arch.Options{})
	must(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600))
	want := map[string][]float32{}
	stored := map[string]tensor.Source{}
	raw := map[string][2][]byte{} // blocks and scales of a file's tensor
	for _, s := range arch.Slots(c) {
		p := s.HF
		if !p.Blocks {
			if _, ok := stored[p.Name]; !ok {
				n, _ := tensor.Elements(p.Shape)
				b := bytes.Repeat([]byte{0, 0x3c}, int(n))
				for i := 0; i < len(b); i += 2 {
					b[i] = byte(rng.Uint32())
				}
				stored[p.Name] = tensor.BytesSource(tensor.Info{Name: p.Name, DType: tensor.BF16, Shape: p.Shape}, b)
			}
			continue
		}
		e, all, in := p.Shape[0], p.Shape[1], p.Shape[2]
		if _, ok := raw[p.Name]; !ok {
			b, sc := make([]byte, e*all*in/2), make([]byte, e*all*in/32)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			for i := range sc {
				sc[i] = byte(110 + rng.IntN(20))
			}
			raw[p.Name] = [2][]byte{b, sc}
			stored[p.Name+"_blocks"] = tensor.BytesSource(tensor.Info{Name: p.Name + "_blocks", DType: tensor.U8, Shape: []int{e, all, in / 32, 16}}, b)
			stored[p.Name+"_scales"] = tensor.BytesSource(tensor.Info{Name: p.Name + "_scales", DType: tensor.U8, Shape: []int{e, all, in / 32}}, sc)
		}
		for x := range e {
			for r := range s.Shape[1] {
				row := x*all + p.First + max(p.Step, 1)*r
				for i := range in {
					b := raw[p.Name][0][(row*in+i)/2]
					if i%2 == 1 {
						b >>= 4
					}
					scale := math.Ldexp(1, int(raw[p.Name][1][(row*in+i)/32])-127)
					want[s.Name] = append(want[s.Name], float32(fp4(b&15)*scale))
				}
			}
		}
	}
	if len(want) != 3 {
		t.Fatalf("%d slots in blocks", len(want))
	}
	write := func() *modelfile.Files {
		var sources []tensor.Source
		for _, s := range stored {
			sources = append(sources, s)
		}
		must(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), sources, safetensors.Options{Force: true}))
		return open(t, dir)
	}
	f := write()
	must(t, f.CheckTensors())
	var slots []tensor.Source
	for _, s := range f.File.Tensors() {
		slots = append(slots, s.Source())
	}
	back := t.TempDir()
	_, err = modelfile.SaveHF(back, c, nil, slots, tensor.BF16, true)
	must(t, err)
	again := open(t, back)
	if again.Config.Stored != arch.MXFP4 {
		t.Errorf("written back as %q", again.Config.Stored)
	}
	for name, s := range stored {
		other, ok := again.Stored.Tensor(name)
		if !ok || !s.Equal(other.Info) || !bytes.Equal(bytesOf(t, s), bytesOf(t, other.Source())) {
			t.Errorf("%s is another when it is written back", name)
		}
	}
	for name, w := range want {
		if s, _ := f.File.Tensor(name); s.DType != tensor.MXFP4 || s.Size != s.Elements()/32*17 {
			t.Errorf("%s is %s in %d bytes", name, s.DType, s.Size)
		}
		checkReads(t, f, name)
		got, err := f.ReadFloat32(name)
		must(t, err)
		for i := range w {
			if got[i] != w[i] {
				t.Fatalf("%s: value %d is %g, want %g", name, i, got[i], w[i])
			}
		}
	}
	const gate = "model.layers.0.mlp.experts.gate_proj.weight"
	bf16 := slices.Clone(slots)
	for i, s := range bf16 {
		if s.Name == gate {
			bf16[i] = tensor.BytesSource(tensor.Info{Name: gate, DType: tensor.BF16, Shape: s.Shape}, make([]byte, 2*s.Elements()))
		}
	}
	if _, err := modelfile.SaveHF(t.TempDir(), c, nil, bf16, tensor.BF16, true); fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), gate) {
		t.Errorf("experts of two types: %v", err)
	}
	const scales = "model.layers.0.mlp.experts.down_proj_scales"
	whole := stored[scales]
	stored[scales] = tensor.BytesSource(whole.Info, make([]byte, whole.Size))
	f = write()
	if _, err := f.WeightsSHA256(); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), scales) {
		t.Errorf("scales of zeros: %v", err)
	}
	stored[scales] = tensor.BytesSource(tensor.Info{Name: scales, DType: tensor.U8, Shape: []int{3, 64, 2}}, make([]byte, 3*64*2))
	if err := write().CheckTensors(); err == nil || !strings.Contains(err.Error(), scales) || !strings.Contains(err.Error(), "has shape [3 64 2]; the configuration needs [3 64 1]") {
		t.Error(err)
	}
}
