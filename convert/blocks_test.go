package convert

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/quant"
	"apr/quant/quanttest"
	"apr/tensor"
	"apr/tokenizer"
)

// TestBlocksThroughAPR: blocks of every type of GGUF come back from .apr byte for byte, also where rows are reordered (llama) or
// tensors are split and joined (phi3).
func TestBlocksThroughAPR(t *testing.T) {
	tok, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama", "phi3", "qwen3"} {
		c, err := arch.Parse("config.json", `{"model_type":"`+name+`","hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,"num_attention_heads":4,`+
			`"num_key_value_heads":2,"vocab_size":4160,"max_position_embeddings":64,`+families[name]+`}`, arch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.IQ4_NL, tensor.IQ4_XS} {
			t.Run(name+" "+d.String(), func(t *testing.T) {
				contracttest.Cases(t, 1)
				dir := t.TempDir()
				file, apr, back := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "b.apr"), filepath.Join(dir, "c.gguf")
				if err := modelfile.SaveGGUF(file, c, tok, inBlocks(randomSlots(c), d), modelfile.GGUFOrigin{}, false); err != nil {
					t.Fatal(err)
				}
				for _, step := range [][2]string{{file, apr}, {apr, back}} {
					r, err := Write(context.Background(), open(t, step[0]), step[1], Options{})
					if err != nil || len(r.Widened) > 0 || len(r.RMSE) > 0 {
						t.Fatalf("%v, %+v", err, r)
					}
				}
				equalPayloads(t, open(t, file), open(t, apr))
				a, b := ggufFile(t, file), ggufFile(t, back)
				blocks := 0
				for _, x := range a.Tensors() {
					y, ok := b.Tensor(x.Name)
					if !ok || x.DType != y.DType || !bytes.Equal(payload(t, x), payload(t, y)) {
						t.Errorf("%s of %s is another: %s", x.Name, x.DType, y.DType)
					}
					if x.DType == d {
						blocks++
					}
				}
				if blocks < 10 {
					t.Errorf("%d tensors of %s", blocks, d)
				}
			})
		}
	}
}

// inBlocks encodes the matrices of bfloat16.
func inBlocks(list []tensor.Source, d tensor.DType) []tensor.Source {
	for i, s := range list {
		var raw bytes.Buffer
		if err := s.Payload(&raw); err != nil {
			panic(err)
		}
		values := make([]float32, s.Elements())
		tensor.Widen(values, raw.Bytes(), s.DType)
		info, out := s.Info, make([]byte, 4*len(values))
		if info.DType = tensor.F32; len(s.Shape) < 2 {
			tensor.Narrow(out, values, tensor.F32)
		} else if info.DType = d; d == tensor.IQ4_NL || d == tensor.IQ4_XS {
			out = quanttest.IQ4(values, d)
		} else {
			out = make([]byte, len(values)/d.BlockLen()*d.BlockBytes())
			if err := quant.Quantize(out, values, d); err != nil {
				panic(err)
			}
		}
		list[i] = tensor.BytesSource(info, out)
	}
	return list
}

func ggufFile(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func payload(t *testing.T, s tensor.Stored) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(s, 0, s.Size))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
