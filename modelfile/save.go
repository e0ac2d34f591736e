package modelfile

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/tensor"
	"apr/tokenizer"
)

// maxShard is the size above which a Hugging Face folder is written as several files.
const maxShard = 5_000_000_000

// HFOptions say how a Hugging Face folder is written.
type HFOptions struct {
	DType    tensor.DType      // what config.json states
	Keep     map[string][]byte // files to write as they are, in place of those that would be made; by name
	MaxShard int64             // bytes of a file of weights; 0: 5 GB
	Force    bool              // replace existing files
	Metadata map[string]string // of the files of weights
}

// SaveHF writes a Hugging Face folder: config.json, model.safetensors (sharded above 5 GB, with index),
// generation_config.json and, if there is a tokenizer, tokenizer.json and tokenizer_config.json. dtype is what
// config.json states. A configuration that names no end of texts gets the tokenizer's. Existing files are refused
// without force.
func SaveHF(dir string, c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, dtype tensor.DType, force bool) ([]string, error) {
	return SaveHFFolder(dir, c, tok, tensors, HFOptions{DType: dtype, Force: force})
}

// SaveHFFolder is SaveHF with all options. It returns the names of the files, those of the weights first.
func SaveHFFolder(dir string, c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, opt HFOptions) (_ []string, err error) {
	if c.Stored, err = storedAs(c, tensors); err != nil {
		return nil, err
	}
	if tok != nil && len(c.EOS) == 0 && tok.EOS() != tokenizer.None {
		c.EOS = []int{int(tok.EOS())} // other programs end a text by these files alone
	}
	config, err := arch.HFConfig(c, opt.DType)
	if err != nil {
		return nil, err
	}
	stored, err := placed(c, tensors, func(s arch.Slot) arch.Place { return s.HF })
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
	names, err := safetensors.WriteDir(dir, stored, cmp.Or(opt.MaxShard, maxShard), safetensors.Options{Force: opt.Force, Metadata: opt.Metadata})
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
