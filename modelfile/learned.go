package modelfile

import (
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/strictjson"
)

// What a file says of the text that a new student learned: .apr metadata holds it as distillation.text, GGUF under
// LearnedKey.
const (
	LearnedText = "plain" // no conversation: the student continues texts, whatever chat template its tokenizer has
	LearnedKey  = "apr.distillation.text"
)

// Learned returns what the model's file says of the text that it was trained on: LearnedText, or "" for unknown.
func (c *Container) Learned() string {
	var m *aprfile.Metadata
	switch f := c.Stored.(type) {
	case *gguf.File:
		text, _, _ := f.Metadata().Str(LearnedKey) // of another type it says nothing
		return text
	case *aprfile.File:
		m = f.Metadata()
	case *safetensors.File:
		text, ok := f.Metadata()[SafetensorsKey]
		if !ok {
			return ""
		}
		var err error
		if m, err = aprfile.ParseMetadata(c.Path, text); err != nil { // told where the configuration is read
			return ""
		}
	default:
		return ""
	}
	v, _ := m.Value("distillation")
	if v.Kind() != strictjson.Object {
		return ""
	}
	text, _ := v.Get("text")
	learned, _ := text.Str()
	return learned
}
