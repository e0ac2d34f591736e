package modelfile

import (
	"path/filepath"

	"apr/arch"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/readfile"
	"apr/tokenizer"
)

// warnOfConfig says what is doubtful about the numbers of the configuration: keys that are left out, and values that no
// published model has.
func (c *Container) warnOfConfig() {
	config, err := c.ReadConfig()
	if err != nil {
		return
	}
	path := c.Path
	var assumed []arch.Assumed
	switch f := c.Stored.(type) {
	case *gguf.File:
		assumed = arch.AssumedGGUF(func(key string) bool { _, ok := f.Metadata().Value(key); return ok }, config)
	case *safetensors.File:
		if _, embedded := f.Metadata()[SafetensorsKey]; embedded {
			break
		}
		path = filepath.Join(c.Folder, "config.json")
		if text, err := readfile.String(path, maxConfigBytes); err == nil {
			assumed = arch.AssumedKeys(text, config)
		}
	}
	for _, a := range assumed {
		c.Warnings = append(c.Warnings, path+": "+a.String())
	}
	for _, line := range config.Implausible() {
		c.Warnings = append(c.Warnings, path+": "+line)
	}
}

// CheckBeside returns what the other files of a tokenizer in the model's folder say against tok, the model's.
func (c *Container) CheckBeside(tok *tokenizer.Tokenizer) []string {
	f, ok := c.Stored.(*safetensors.File)
	if !ok {
		return nil
	}
	if _, embedded := f.Metadata()[SafetensorsKey]; embedded {
		return nil
	}
	return tok.Contradictions(c.Folder)
}
