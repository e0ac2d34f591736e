package convert

import (
	"path/filepath"
	"strings"

	"apr/format/gguf"
	"apr/modelfile"
	"apr/tensor"
)

// origins are the texts about a model's origin that .apr metadata and, after "general.", GGUF have in common.
var origins = []string{"name", "author", "version", "description", "license"}

// writeGGUF writes the tensors with the configuration, tokenizer and origin of c. A model without a name gets that of
// its file or folder.
func writeGGUF(c *Container, out string, sources []tensor.Source, opt Options) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	tok, err := c.Tokenizer()
	if err != nil {
		return err
	}
	m, err := c.metadata()
	if err != nil {
		return err
	}
	text := map[string]string{}
	for _, key := range origins {
		if f, ok := c.Stored.(*gguf.File); ok {
			text[key], _, err = f.Metadata().Str("general." + key)
		} else if m != nil {
			text[key], _, err = m.Str(key)
		}
		if err != nil {
			return err
		}
	}
	if text["name"] == "" {
		text["name"] = stem(c.Path)
	}
	pruned, err := c.prunedText(opt)
	if err != nil {
		return err
	}
	return modelfile.SaveGGUF(out, cfg, tok, sources, modelfile.GGUFOrigin{
		Name: text["name"], Author: text["author"], Version: text["version"], Description: text["description"], License: text["license"],
		Learned: c.Learned(), Writers: c.Writers(), Pruned: pruned,
	}, opt.Force)
}

// stem is the name of a folder, or of a file without its extension.
func stem(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	name := filepath.Base(path)
	switch ext := filepath.Ext(name); strings.ToLower(ext) {
	case ".apr", ".gguf", ".safetensors":
		return strings.TrimSuffix(name, ext)
	}
	return name
}
