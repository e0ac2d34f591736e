package modelfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/quant"
	"apr/quant/quanttest"
	"apr/tensor"
)

// iq4 writes f with its matrices in blocks of IQ4.
func iq4(t *testing.T, f *modelfile.Files, d tensor.DType, changes ...change) *modelfile.Files {
	t.Helper()
	var out []tensor.Source
	for _, st := range f.File.Tensors() {
		values := changed(t, f, st.Name, changes)
		info, raw := tensor.Info{Name: st.Name, DType: tensor.F32, Shape: st.Shape}, make([]byte, 4*len(values))
		if len(st.Shape) == 2 {
			info.DType, raw = d, encoded(t, values, d)
		} else {
			tensor.Narrow(raw, values, tensor.F32)
		}
		out = append(out, tensor.BytesSource(info, raw))
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	must(t, modelfile.SaveGGUF(path, f.Config, nil, out, modelfile.GGUFOrigin{}, false))
	return open(t, path)
}

// encoded encodes values as blocks that they fill.
func encoded(t *testing.T, values []float32, d tensor.DType) []byte {
	t.Helper()
	if d != tensor.MXFP4 {
		return quanttest.IQ4(values, d)
	}
	raw := make([]byte, d.RowBytes(len(values)))
	must(t, quant.Quantize(raw, values, d))
	return raw
}

func changed(t *testing.T, f *modelfile.Files, name string, changes []change) []float32 {
	t.Helper()
	values, err := f.ReadFloat32(name)
	must(t, err)
	for _, c := range changes {
		c(name, values)
	}
	return values
}

// fp8Folder writes f as a Hugging Face folder whose matrices are 8-bit floats with scales of type d, as quantization says;
// embedding and head stay. drop are tensors left out.
func fp8Folder(t *testing.T, f *modelfile.Files, scheme quant.FP8, d tensor.DType, quantization string, drop string, changes ...change) string {
	t.Helper()
	narrow := func(x float32) float32 {
		raw, back := make([]byte, 4), make([]float32, 1)
		tensor.Narrow(raw, []float32{x}, d)
		tensor.Widen(back, raw, d)
		return back[0]
	}
	var out []tensor.Source
	add := func(name string, d tensor.DType, shape []int, raw []byte) {
		if name != drop {
			out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, raw))
		}
	}
	for _, st := range f.File.Tensors() {
		values := changed(t, f, st.Name, changes)
		if len(st.Shape) != 2 || !strings.Contains(st.Name, "proj") {
			raw := make([]byte, 2*len(values))
			tensor.Narrow(raw, values, tensor.BF16)
			add(st.Name, tensor.BF16, st.Shape, raw)
			continue
		}
		q, scales := quanttest.FP8(values, st.Rows(), st.Cols(), scheme.BlockRows, scheme.BlockCols, narrow)
		raw := make([]byte, len(scales)*d.BlockBytes())
		tensor.Narrow(raw, scales, d)
		add(st.Name, tensor.F8_E4M3, st.Shape, q)
		add(st.Name+"_scale_inv", d, scheme.Shape(st.Rows(), st.Cols()), raw)
	}
	dir := t.TempDir()
	must(t, safetensors.Write(filepath.Join(dir, safetensors.SingleName), out, safetensors.Options{}))
	config := hfJSON(t, f.Config, tensor.BF16)
	if quantization != "" {
		config = strings.Replace(config, "{", `{"quantization_config": `+quantization+",", 1)
	}
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	return dir
}

// blocks128 is the usual scheme.
var blocks128 = quant.FP8{BlockRows: 128, BlockCols: 128}

const method = `{"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]}`

// TestFP8Folder: values are 8-bit floats times their scales; the file says what it holds.
func TestFP8Folder(t *testing.T) {
	original := small(t)
	for name, c := range map[string]struct {
		scheme quant.FP8
		scales tensor.DType
		config string
	}{
		"blocks":       {blocks128, tensor.F32, method},
		"bf16 scales":  {blocks128, tensor.BF16, `{"quant_method":"fp8","fmt":"e4m3"}`},
		"ragged":       {quant.FP8{BlockRows: 96, BlockCols: 100}, tensor.F32, `{"quant_method":"fp8","weight_block_size":[96,100]}`},
		"one a matrix": {quant.FP8{}, tensor.BF16, `{"quant_method":"fp8","activation_scheme":"static","weight_block_size":null}`},
	} {
		contracttest.Cases(t, 1)
		f := open(t, fp8Folder(t, original, c.scheme, c.scales, c.config, ""))
		must(t, f.CheckTensors())
		for _, st := range f.File.Tensors() {
			want, err := original.ReadFloat32(st.Name)
			must(t, err)
			got, err := f.ReadFloat32(st.Name)
			must(t, err)
			held := tensor.BF16
			if strings.Contains(st.Name, "proj") && len(st.Shape) == 2 {
				held = tensor.F8_E4M3
			}
			if st.Held().DType != held {
				t.Errorf("%s: %s is held as %s", name, st.Name, st.Held().DType)
			}
			dd, ww := 0.0, 0.0
			for i := range want {
				d := float64(got[i]) - float64(want[i])
				dd, ww = dd+d*d, ww+float64(want[i])*float64(want[i])
			}
			if limit := 0.04 * 0.04 * ww; held == tensor.BF16 && dd != 0 || !(dd <= limit) {
				t.Errorf("%s: %s is off by %g of %g", name, st.Name, dd, ww)
			}
		}
	}
}

// TestFP8FolderRefused: what cannot be decoded is refused with the file, and what would be right.
func TestFP8FolderRefused(t *testing.T) {
	original := small(t)
	const q = "model.layers.0.self_attn.q_proj.weight"
	for name, c := range map[string]struct {
		quantization, drop, want string
		kind                     fault.Kind
	}{
		"gptq":       {`{"quant_method":"gptq","bits":4}`, "", `quantization_config: quant_method "gptq" is not supported; supported: ["fp8"]`, fault.Load},
		"e5m2":       {`{"quant_method":"fp8","fmt":"e5m2"}`, "", `fmt "e5m2" is not supported`, fault.Load},
		"block 0":    {`{"quant_method":"fp8","weight_block_size":[128,0]}`, "", `weight_block_size [128 0] is not`, fault.Load},
		"other size": {`{"quant_method":"fp8","weight_block_size":[64,64]}`, "", `scales have shape`, fault.Load},
		"one scale":  {`{"quant_method":"fp8","weight_block_size":null}`, "", `scales have shape`, fault.Load},
		"no scales":  {method, q + "_scale_inv", `tensor "` + q + `": is of type f8_e4m3 and has no scales`, fault.Load},
		"no weight":  {method, q, `tensor "` + q + `": is missing`, fault.Load},
		"no method":  {"", "", `is of type f8_e4m3, and config.json has no quantization_config`, fault.Load},
	} {
		contracttest.Cases(t, 1)
		f, err := modelfile.Open(fp8Folder(t, original, blocks128, tensor.F32, c.quantization, c.drop))
		if err == nil {
			err = f.CheckTensors()
			must(t, f.Close())
		}
		if fault.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestIdentityOfDecodedTypes: copies in IQ4 and FP8 are derived, of the original and of each other; what was trained by a
// step is another model.
func TestIdentityOfDecodedTypes(t *testing.T) {
	hf := small(t)
	copies := map[string]func(c ...change) *modelfile.Files{
		"iq4_nl": func(c ...change) *modelfile.Files { return iq4(t, hf, tensor.IQ4_NL, c...) },
		"iq4_xs": func(c ...change) *modelfile.Files { return iq4(t, hf, tensor.IQ4_XS, c...) },
		"mxfp4":  func(c ...change) *modelfile.Files { return iq4(t, hf, tensor.MXFP4, c...) },
		"fp8": func(c ...change) *modelfile.Files {
			return open(t, fp8Folder(t, hf, blocks128, tensor.BF16, method, "", c...))
		},
		"fp8, scalar": func(c ...change) *modelfile.Files {
			return open(t, fp8Folder(t, hf, quant.FP8{}, tensor.F32, `{"quant_method":"fp8","weight_block_size":null}`, "", c...))
		},
	}
	for name, of := range copies {
		t.Run(name, func(t *testing.T) {
			same := of()
			for other, f := range map[string]*modelfile.Files{
				"bf16": hf, "f32 of it": variant(t, same, tensor.F32), "bf16 of it": variant(t, same, tensor.BF16), "q8_0 of one": variant(t, hf, tensor.Q8_0),
				"q4_k of one": variant(t, hf, tensor.Q4_K), "iq4_nl of one": copies["iq4_nl"](), "fp8 of one": copies["fp8"](),
			} {
				contracttest.Cases(t, 1)
				if k := identify(t, same, f); k.Relation == modelfile.Different || other == "bf16" && (k.Relation != modelfile.Derived || !strings.Contains(k.Rounding, " of bf16")) {
					t.Errorf("%s: %s", other, k)
				}
			}
			for _, d := range []tensor.DType{tensor.F32, tensor.BF16} { // expanded again, beside the original
				contracttest.Cases(t, 1)
				if k := identify(t, hf, variant(t, same, d)); k.Relation != modelfile.Derived {
					t.Errorf("%s of it, beside the original: %s", d, k)
				}
			}
			for what, c := range map[string]change{"a step of AdamW": adam(3e-4), "a small step of AdamW": adam(1e-5), "a step of SGD": sgd(3e-3)} {
				contracttest.Cases(t, 1)
				if k := identify(t, same, variant(t, same, tensor.F32, c)); k.Relation != modelfile.Different {
					t.Errorf("%s of a teacher of these: %s", what, k)
				}
			}
			for what, c := range map[string]change{"a step of AdamW": adam(3e-4), "a step of one matrix": only("layers.0.mlp.up_proj.weight", adam(3e-4))} {
				contracttest.Cases(t, 1)
				if k := identify(t, hf, of(c)); k.Relation != modelfile.Different {
					t.Errorf("%s: %s", what, k)
				}
			}
		})
	}
}
