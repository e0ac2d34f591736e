package randmodel

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apr/arch"
	"apr/format/safetensors"
	"apr/tensor"
	"apr/tokenizer"
)

// Tokenizers is the folder of tokenizers, from the root of the module.
const Tokenizers = "testdata/tokenizers"

// FolderName is the name of the model's folder, and so of the model.
func (m Model) FolderName() string { return cmp.Or(m.Title, m.Name) }

// Config returns the text of the model's config.json and what it describes.
func (m Model) Config() (string, arch.Config, error) {
	text, err := configs.ReadFile("families/" + m.Name + ".json")
	if err != nil {
		return "", arch.Config{}, err
	}
	c, err := arch.Parse(m.Name+".json", string(text), arch.Options{})
	return string(text), c, err
}

// Folder writes the model in float32 as a Hugging Face folder, with the configuration as it is and the tokenizer's files,
// which are under root, the root of the module.
func (m Model) Folder(root, dir string) error {
	text, c, err := m.Config()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o644); err != nil {
		return err
	}
	if err := m.tokenizerFiles(root, dir); err != nil {
		return err
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return err
	}
	params := Weights(c, tok, m.Thin)
	return safetensors.Write(filepath.Join(dir, "model.safetensors"), stored(c, params), safetensors.Options{Force: true})
}

// tokenizerFiles copies the tokenizer; with Gemma's normaliser, pre-tokenizer and decoder if NoPrefix is set.
func (m Model) tokenizerFiles(root, dir string) error {
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(root, Tokenizers, m.Tokenizer, name))
		if err != nil {
			return err
		}
		if m.NoPrefix && name == "tokenizer.json" {
			if data, err = withoutPrefix(root, data); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withoutPrefix gives a tokenizer the parts of Gemma's around its vocabulary and merges.
func withoutPrefix(root string, data []byte) ([]byte, error) {
	var to, from map[string]json.RawMessage
	gemma, err := os.ReadFile(filepath.Join(root, Tokenizers, "gemma", "tokenizer.json"))
	if err == nil {
		err = errors.Join(json.Unmarshal(data, &to), json.Unmarshal(gemma, &from))
	}
	if err != nil {
		return nil, err
	}
	for _, part := range []string{"normalizer", "pre_tokenizer", "decoder"} {
		to[part] = from[part]
	}
	return json.Marshal(to)
}

// stored returns the tensors of a Hugging Face folder.
func stored(c arch.Config, params map[string][]float32) (list []tensor.Source) {
	shapes, files := map[string][]int{}, map[string][]float32{}
	var order []string
	for _, s := range arch.Slots(c) {
		var parts [][]float32
		for e := range max(s.HF.Each, 1) {
			name := strings.ReplaceAll(s.HF.Name, "{e}", fmt.Sprint(e))
			if files[name] == nil {
				n := 1
				for _, d := range s.HF.Shape {
					n *= d
				}
				files[name], shapes[name] = make([]float32, n), s.HF.Shape
				order = append(order, name)
			}
			parts = append(parts, files[name])
		}
		arch.Scatter(s, s.HF, params[s.Name], parts)
	}
	for _, name := range order {
		raw := make([]byte, 4*len(files[name]))
		if _, err := binary.Encode(raw, binary.LittleEndian, files[name]); err != nil {
			panic(err) // a slice of float32 of the right length
		}
		list = append(list, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: shapes[name]}, raw))
	}
	return list
}
