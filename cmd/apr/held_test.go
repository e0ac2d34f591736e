package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"apr/format/safetensors"
	"apr/modelfile"
	"apr/quant"
	"apr/quant/quanttest"
	"apr/tensor"
)

// held writes the reference model with its matrices in a type that the program only reads: a GGUF file of iq4_nl or iq4_xs, or
// a Hugging Face folder of 8-bit floats with one scale for 128×128 of them, in shards, as public checkpoints are.
func held(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: held iq4_nl|iq4_xs|f8_e4m3 OUTPUT")
	}
	f, err := modelfile.Open(ts.Getenv("MODEL"))
	ts.Check(err)
	defer f.Close()
	d, out := tensor.ParseDType(args[0]), ts.MkAbs(args[1])
	if d == tensor.F8_E4M3 {
		ts.Check(writeFP8(f, ts.Getenv("MODEL"), out))
		return
	}
	tok, err := f.Tokenizer()
	ts.Check(err)
	var all []tensor.Source
	for _, st := range f.File.Tensors() {
		values, err := f.ReadFloat32(st.Name)
		ts.Check(err)
		info, raw := tensor.Info{Name: st.Name, DType: tensor.F32, Shape: st.Shape}, make([]byte, 4*len(values))
		tensor.Narrow(raw, values, tensor.F32)
		if len(st.Shape) == 2 {
			info.DType, raw = d, quanttest.IQ4(values, d)
		}
		all = append(all, tensor.BytesSource(info, raw))
	}
	ts.Check(modelfile.SaveGGUF(out, f.Config, tok, all, modelfile.GGUFOrigin{}, false))
}

func writeFP8(f *modelfile.Files, from, dir string) error {
	scheme := quant.FP8{BlockRows: 128, BlockCols: 128}
	var all []tensor.Source
	add := func(name string, d tensor.DType, shape []int, raw []byte) {
		all = append(all, tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, raw))
	}
	for _, st := range f.File.Tensors() {
		if !strings.HasSuffix(st.Name, "_proj.weight") { // embedding and head are not among modules of 8 bits
			all = append(all, st.Source())
			continue
		}
		values, err := f.ReadFloat32(st.Name)
		if err != nil {
			return err
		}
		q, scales := quanttest.FP8(values, st.Rows(), st.Cols(), scheme.BlockRows, scheme.BlockCols, nil)
		raw := make([]byte, 4*len(scales))
		tensor.Narrow(raw, scales, tensor.F32)
		add(st.Name, tensor.F8_E4M3, st.Shape, q)
		add(st.Name+"_scale_inv", tensor.F32, scheme.Shape(st.Rows(), st.Cols()), raw)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if _, err := safetensors.WriteDir(dir, all, 2<<20, safetensors.Options{}); err != nil {
		return err
	}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if name == "config.json" {
			const fp8 = `{"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},`
			text = []byte(strings.Replace(string(text), "{", fp8, 1))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
