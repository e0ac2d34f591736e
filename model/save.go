package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/tensor"
	"apr/tokenizer"
)

// DownloadSource returns a tensor of the device as one to be written to a file with elements of type d (F32, F16 or
// BF16). It is downloaded when it is written.
func DownloadSource(s device.Stream, name string, shape []int, t device.Tensor, d tensor.DType) tensor.Source {
	n, _ := tensor.Elements(shape)
	info := tensor.Info{Name: name, DType: d, Shape: shape, Size: n * int64(d.BlockBytes())}
	return tensor.Source{Info: info, Payload: func(w io.Writer) error {
		host := make([]float32, n)
		if err := s.Download(host, t); err != nil {
			return err
		}
		raw := make([]byte, info.Size)
		tensor.Narrow(raw, host, d)
		_, err := w.Write(raw)
		return err
	}}
}

// Sources returns a trainable model's tensors as they are written to a file: matrices in type d, norms and biases in
// float32. A tied head is not listed.
func (m *Model) Sources(s device.Stream, d tensor.DType) []tensor.Source {
	var out []tensor.Source
	for _, p := range m.parts {
		dt := d
		if len(p.Shape) == 1 {
			dt = tensor.F32
		}
		src := DownloadSource(s, p.Name, p.Shape, p.Of(p.Param.Value), dt)
		if d := offset(m.Config, p.Slot); d != 0 {
			src = shiftedSource(src, -d)
		}
		out = append(out, src)
	}
	return append(out, m.FixedSources()...)
}

// shiftedSource adds d to every value of a source of float32.
func shiftedSource(s tensor.Source, d float32) tensor.Source {
	payload := s.Payload
	s.Payload = func(w io.Writer) error {
		var b bytes.Buffer
		if err := payload(&b); err != nil {
			return err
		}
		values := make([]float32, s.Elements())
		tensor.Widen(values, b.Bytes(), s.DType)
		raw := make([]byte, s.Size)
		tensor.Narrow(raw, shifted(values, d), s.DType)
		_, err := w.Write(raw)
		return err
	}
	return s
}

// maxShard is the size above which a Hugging Face folder is written as several files.
const maxShard = 5_000_000_000

// HFOptions say how a Hugging Face folder is written.
type HFOptions struct {
	DType    tensor.DType      // what config.json states
	Keep     map[string][]byte // files to write as they are, in place of those that would be made; by name
	MaxShard int64             // bytes of a file of weights; 0: 5 GB
	Force    bool              // replace existing files
}

// SaveHF writes a Hugging Face folder: config.json, model.safetensors (sharded above 5 GB, with index),
// generation_config.json and, if there is a tokenizer, tokenizer.json and tokenizer_config.json. dtype is what
// config.json states. Existing files are refused without force.
func SaveHF(dir string, c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, dtype tensor.DType, force bool) ([]string, error) {
	return SaveHFFolder(dir, c, tok, tensors, HFOptions{DType: dtype, Force: force})
}

// SaveHFFolder is SaveHF with all options. It returns the names of the files, those of the weights first.
func SaveHFFolder(dir string, c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, opt HFOptions) (_ []string, err error) {
	config, err := arch.HFConfig(c, opt.DType)
	if err != nil {
		return nil, err
	}
	if _, missing := os.Lstat(dir); os.IsNotExist(missing) {
		defer func() {
			if err != nil {
				_ = os.Remove(dir) // it was made here; if something is in it, it stays
			}
		}()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be created").Because(err)
	}
	small := map[string][]byte{"config.json": config, "generation_config.json": generationJSON(c)}
	if tok != nil {
		small["tokenizer.json"] = tok.MarshalTokenizer()
		small["tokenizer_config.json"] = tok.MarshalConfig(c.MaxPositions)
	}
	maps.Copy(small, opt.Keep)
	// The small files are refused, if they exist, before the weights are written; they appear after them.
	var files []*atomicfile.File
	for _, name := range slices.Sorted(maps.Keys(small)) {
		f, err := atomicfile.Create(filepath.Join(dir, name), opt.Force)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if _, err := f.Write(small[name]); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	names, err := safetensors.WriteDir(dir, tensors, cmp.Or(opt.MaxShard, maxShard), safetensors.Options{Force: opt.Force})
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := f.Commit(); err != nil {
			return nil, err
		}
	}
	return append(names, slices.Sorted(maps.Keys(small))...), nil
}

// generationJSON returns generation_config.json.
func generationJSON(c arch.Config) []byte {
	m := map[string]any{"_from_model_config": true, "use_cache": true}
	if c.BOS >= 0 {
		m["bos_token_id"] = c.BOS
	}
	if len(c.EOS) > 0 {
		m["eos_token_id"] = oneOrAll(c.EOS)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // integers and booleans always encode
	}
	return append(b, '\n')
}

// oneOrAll is how Hugging Face writes the ids that end a text: one as a number.
func oneOrAll(ids []int) any {
	if len(ids) == 1 {
		return ids[0]
	}
	return ids
}
