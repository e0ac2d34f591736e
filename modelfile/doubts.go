package modelfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/fault"
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
	switch f := c.Stored.(type) {
	case *gguf.File:
		c.Assumed = arch.AssumedGGUF(func(name string) bool {
			_, key := f.Metadata().Value(name)
			_, table := f.Tensor(name)
			return key || table
		}, config)
	case *safetensors.File:
		if _, embedded := f.Metadata()[SafetensorsKey]; embedded {
			break
		}
		path = filepath.Join(c.Folder, "config.json")
		if text, err := readfile.String(path, maxConfigBytes); err == nil {
			c.Assumed = arch.AssumedKeys(text, config)
		}
	}
	for _, a := range c.Assumed {
		c.Warnings = append(c.Warnings, path+": "+a.String())
	}
	if len(c.Assumed) == 0 { // else what is left out is said, by the names that the file would have
		for _, a := range config.Lost() {
			c.Warnings = append(c.Warnings, path+": "+a.String())
		}
	}
	for _, line := range config.Implausible() {
		c.Warnings = append(c.Warnings, path+": "+line)
	}
}

// CheckStated refuses a model whose file leaves out what every published model of its family states: what is written
// from it would state the value that was assumed. odd lets it pass.
func (c *Container) CheckStated(odd bool) error {
	if len(c.Assumed) == 0 || odd {
		return nil
	}
	path := c.Path
	if c.Folder != "" {
		path = filepath.Join(c.Folder, "config.json")
	}
	return fault.In(fault.Invalid, path, "%s", c.Assumed[0]).
		WithHint("what is written would state it: put it back; if the model was made so, `apr convert " +
			"--allow-odd-weights` writes it").WithID("E-MODEL-052")
}

// CheckBeside returns what speaks against tok, the model's tokenizer: its own template, what no published tokenizer of
// its vocabulary has, the files of a tokenizer in its folder, and a configuration that lost the end of a text or names
// another one.
func (c *Container) CheckBeside(tok *tokenizer.Tokenizer) (lines []string) {
	config, err := c.ReadConfig()
	switch f := c.Stored.(type) {
	case *gguf.File:
		const key = "tokenizer.ggml.eos_token_id"
		if _, ok := f.Metadata().Value(key); !ok {
			lines = append(lines, c.Path+": has no "+key+", as every published model has: "+endOf(tok)+"; was it removed?")
		}
	case *safetensors.File:
		if _, embedded := f.Metadata()[SafetensorsKey]; embedded {
			return nil
		}
		if err == nil && len(config.EOS) == 0 {
			lines = append(lines, filepath.Join(c.Folder, "config.json")+": has no eos_token_id, as every published "+
				"model has: "+endOf(tok)+"; was it removed?")
		}
		if id := tok.EOS(); err == nil && len(config.EOS) > 0 && id != tokenizer.None && !slices.Contains(config.EOS, int(id)) {
			lines = append(lines, fmt.Sprintf("%s: eos_token_id is %d, and the tokenizer ends a text with id %d",
				filepath.Join(c.Folder, "config.json"), config.EOS, id))
		}
		lines = append(lines, tok.Contradictions(c.Folder)...)
	}
	lines = append(lines, c.CheckTemplate(tok)...)
	for _, said := range tok.Unpublished() {
		lines = append(lines, c.Path+": tokenizer: "+said)
	}
	return lines
}

// CheckTemplate returns what speaks against the chat template beside tok, the model's tokenizer.
func (c *Container) CheckTemplate(tok *tokenizer.Tokenizer) []string {
	if said := tok.ForeignTemplate(); said != "" {
		return []string{c.Path + ": " + said}
	}
	if said := tok.UnendedTemplate(); said != "" {
		return []string{c.templateFile() + ": " + said}
	}
	return nil
}

// templateFile is where the chat template is.
func (c *Container) templateFile() string {
	if _, ok := c.Stored.(*safetensors.File); !ok {
		return c.Path
	}
	alone := filepath.Join(c.Folder, "chat_template.jinja")
	if _, err := os.Lstat(alone); err == nil { // it counts
		return alone
	}
	return filepath.Join(c.Folder, "tokenizer_config.json")
}

// endOf says what ends a text by the tokenizer alone.
func endOf(tok *tokenizer.Tokenizer) string {
	id := tok.EOS()
	if id == tokenizer.None {
		return "texts have no end"
	}
	return fmt.Sprintf("id %d, of the tokenizer, is used", id)
}
