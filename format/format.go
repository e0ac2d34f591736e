// Package format opens a model file of any format. What a file is, is found by its content: the extension means
// nothing (there are safetensors files named .apr).
package format

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/internal/shards"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/tensor"
)

// Kind is a format of model files.
type Kind string

// The formats.
const (
	Safetensors Kind = "safetensors"
	Apr         Kind = "apr"
	GGUF        Kind = "gguf"
)

// Open opens a model: a file, an index of shards, or a directory (see Find). The File is of type *safetensors.File,
// *aprfile.File or *gguf.File, as Kind says. Faults are of kind NotFound, Format, IO, UnsafePath or Load.
func Open(path string) (tensor.File, Kind, error) {
	file, err := Find(path)
	if err != nil {
		return nil, "", err
	}
	kind, err := Detect(file)
	if err != nil {
		return nil, "", err
	}
	switch kind {
	case Safetensors:
		f, err := safetensors.Open(file)
		if err != nil {
			return nil, kind, err
		}
		return f, kind, nil
	case Apr:
		f, err := aprfile.Open(file)
		if err != nil {
			return nil, kind, err
		}
		return f, kind, nil
	}
	f, err := gguf.Open(file)
	if err != nil {
		return nil, kind, err
	}
	return f, kind, nil
}

// directory lists what is looked for in a directory, first match first. A pattern must match one file only.
var directory = []string{safetensors.IndexName, "*.apr.index.json", safetensors.SingleName, "*.gguf", "*.apr"}

// MergeAdapter says what to do about an adapter.
const MergeAdapter = "merge it into the weights first, `apr export MODEL --adapter FOLDER -o merged.gguf`"

// Adapter returns the name of a file of a LoRA adapter in a directory, as peft writes it; "" if there is none.
func Adapter(dir string) string {
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
			return name
		}
	}
	return ""
}

// Find returns the file that stands for a model: path itself if it is no directory; else the first of
// model.safetensors.index.json, *.apr.index.json, model.safetensors, *.gguf and *.apr in it. Several files of the
// pattern that decides are a fault of kind NotFound, as is none, and model.safetensors beside an index that does not list it; a link that leads out of the directory is of kind
// UnsafePath.
func Find(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", readfile.Fault(path, err)
	}
	if !info.IsDir() {
		return path, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", readfile.Fault(path, err)
	}
	for _, pattern := range directory {
		var found []string
		for _, e := range entries {
			if ok, _ := filepath.Match(pattern, e.Name()); ok && !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				found = append(found, e.Name())
			}
		}
		if len(found) > 1 {
			return "", fault.In(fault.NotFound, path, "directory holds several %s files: %q and %q", pattern, found[0], found[1]).
				WithHint("name the file").WithID("E-FORMAT-002")
		}
		if pattern == safetensors.IndexName && len(found) == 1 {
			if err := safetensors.CheckFolder(path); err != nil {
				return "", err
			}
		}
		if len(found) == 1 {
			return readfile.Inside(path, found[0])
		}
	}
	missing := fault.In(fault.NotFound, path, "directory holds no model: none of %s", strings.Join(directory, ", ")).WithID("E-FORMAT-001")
	if name := Adapter(path); name != "" {
		return "", missing.WithHint("%s is a LoRA adapter without the model that it belongs to: %s; with --adapter-only it "+
			"becomes a file for llama.cpp, and `apr run MODEL --adapter FOLDER` uses it as it is", name, MergeAdapter)
	}
	for _, e := range entries {
		for _, pattern := range torchFiles {
			if ok, _ := filepath.Match(pattern, e.Name()); ok {
				return "", missing.WithHint("%s is PyTorch's; %s", e.Name(), ConvertTorch)
			}
		}
	}
	return "", missing
}

// Detect finds the format of a file by its first bytes; an index of shards has the format of its first shard. Pickles
// and archives are refused without reading on: a pickle is a program.
func Detect(path string) (Kind, error) {
	head, err := readfile.Head(path, 16)
	if err != nil {
		return "", err
	}
	if !shards.LooksLikeIndex(head) {
		return kindOf(path, head)
	}
	ix, err := shards.Read(path)
	if err != nil {
		return "", err
	}
	shard, err := readfile.Inside(filepath.Dir(path), ix.Shards()[0])
	if err != nil {
		return "", err
	}
	if head, err = readfile.Head(shard, 16); err != nil {
		return "", err
	}
	return kindOf(shard, head)
}

// archives are the beginnings of files that are never read.
var archives = []struct {
	magic, what string
	torch       bool // PyTorch writes such files
}{
	{"PK", "a zip archive (PyTorch writes them)", true},
	{"\x80\x02", "a pickle", true}, {"\x80\x03", "a pickle", true}, {"\x80\x04", "a pickle", true}, {"\x80\x05", "a pickle", true},
	{"\x1f\x8b", "a gzip archive", false}, {"BZh", "a bzip2 archive", false}, {"\xfd7zXZ", "an xz archive", false}, {"7z\xbc\xaf", "a 7z archive", false},
	{"Rar!", "a rar archive", false}, {"\x28\xb5\x2f\xfd", "a zstd archive", false},
}

// ConvertTorch says how to make safetensors of PyTorch's files.
const ConvertTorch = "a pickle is a program that runs when it is opened; convert the model once: " +
	`python3 -c "from transformers import AutoModelForCausalLM as M; M.from_pretrained('DIR').save_pretrained('OUT')", and copy the tokenizer's files to OUT`

// torchFiles are what PyTorch's weights are called.
var torchFiles = []string{"*.bin", "*.pt", "*.pth", "*.ckpt"}

var aprMagics = []string{"APR\x00", "APR2", "APR1", "APRN"}

func kindOf(path string, head []byte) (Kind, error) {
	text := string(head)
	if len(head) > 8 && head[8] == '{' && looksLikeSafetensors(head) {
		return Safetensors, nil // before archives: the length of its header may begin with the bytes of a magic
	}
	for _, a := range archives {
		if strings.HasPrefix(text, a.magic) {
			err := fault.In(fault.Format, path, "this is %s, which is never read", a.what).WithID("E-FORMAT-004")
			if a.torch {
				return "", err.WithHint("%s", ConvertTorch)
			}
			return "", err.WithHint("unpack it")
		}
	}
	switch {
	case strings.HasPrefix(text, "GGUF"):
		return GGUF, nil
	case slices.ContainsFunc(aprMagics, func(m string) bool { return strings.HasPrefix(text, m) }):
		return Apr, nil
	case looksLikeSafetensors(head):
		return Safetensors, nil
	}
	return "", fault.In(fault.Format, path, "neither safetensors, .apr nor GGUF: it begins with %q", text).WithID("E-FORMAT-005")
}

// looksLikeSafetensors reports whether a plausible header length is followed by an object, after blanks if any.
func looksLikeSafetensors(head []byte) bool {
	if len(head) <= 8 || binary.LittleEndian.Uint64(head) > 100_000_000 {
		return false
	}
	text := strings.TrimLeft(string(head[8:]), " \t\r\n")
	return text == "" || text[0] == '{'
}
