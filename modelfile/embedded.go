package modelfile

import (
	"apr/arch"
	"apr/format/aprfile"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/tokenizer"
)

// SafetensorsKey is the key of __metadata__ under which a safetensors file that stands alone carries configuration and
// tokenizer: as text, the metadata of the .apr file with the same content. A file that has it needs no config.json.
const SafetensorsKey = "apr"

// embeddedConfig reads the configuration from that text.
func embeddedConfig(f *safetensors.File, text string) (arch.Config, error) {
	m, err := aprfile.ParseMetadata(f.Path(), text)
	if err != nil {
		return arch.Config{}, err
	}
	embed, ok := f.Tensor("model.embed_tokens.weight")
	if !ok {
		return arch.Config{}, fault.In(fault.Load, f.Path(), "is missing").At(`tensor "model.embed_tokens.weight"`).WithID("E-MODEL-001")
	}
	head, ok := f.Tensor("lm_head.weight")
	c, err := aprConfig(m, f.Path(), !ok || head.Size == 0)
	c.DType = embed.DType
	return c, err
}

// embeddedTokenizer reads the tokenizer from that text.
func embeddedTokenizer(f *safetensors.File, text string) (*tokenizer.Tokenizer, error) {
	m, err := aprfile.ParseMetadata(f.Path(), text)
	if err != nil {
		return nil, err
	}
	return aprTokenizer(m, f.Path())
}
