package modelfile

import (
	"strings"

	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/strictjson"
)

// What a file says of the text that a new student learned: .apr metadata holds it as distillation.text, GGUF and the
// metadata of safetensors under LearnedKey.
const (
	LearnedTalks = "conversations" // and nothing else: the student answers in its chat template
	LearnedText  = "plain"         // no conversation: it continues texts, whatever chat template its tokenizer has
	LearnedKey   = "apr.distillation.text"

	// WritersKey holds, in GGUF and in the metadata of safetensors, the models that wrote text that this one learned, with
	// blanks between; .apr metadata holds them as a list, distillation.writers.
	WritersKey = "apr.distillation.writers"
)

// Learned returns what the model's file says of the text that it was trained on: LearnedText, LearnedTalks, or ""
// for unknown.
func (c *Container) Learned() string {
	switch f := c.Stored.(type) {
	case *gguf.File:
		text, _, _ := f.Metadata().Str(LearnedKey) // of another type it says nothing
		return text
	case *safetensors.File:
		if text := f.Metadata()[LearnedKey]; text != "" {
			return text
		}
	}
	text, _ := c.distillation("text").Str()
	return text
}

// LearnedMetadata returns the metadata of safetensors for what Learned and Writers return, without what is unknown.
func LearnedMetadata(learned string, writers []string) map[string]string {
	m := map[string]string{}
	if learned != "" {
		m[LearnedKey] = learned
	}
	if len(writers) > 0 {
		m[WritersKey] = strings.Join(writers, " ")
	}
	return m
}

// Writers returns the models that wrote text that this one learned, as its file says.
func (c *Container) Writers() (all []string) {
	switch f := c.Stored.(type) {
	case *gguf.File:
		text, _, _ := f.Metadata().Str(WritersKey)
		return strings.Fields(text)
	case *safetensors.File:
		if text := f.Metadata()[WritersKey]; text != "" {
			return strings.Fields(text)
		}
	}
	v := c.distillation("writers")
	if v.Kind() != strictjson.Array {
		return nil
	}
	for item := range v.Items() {
		if name, err := item.Str(); err == nil {
			all = append(all, name)
		}
	}
	return all
}

// distillation returns a value of what .apr metadata, in whatever file it is, says of the training.
func (c *Container) distillation(key string) (v strictjson.Value) {
	var m *aprfile.Metadata
	switch f := c.Stored.(type) {
	case *aprfile.File:
		m = f.Metadata()
	case *safetensors.File:
		text, ok := f.Metadata()[SafetensorsKey]
		if !ok {
			return v
		}
		var err error
		if m, err = aprfile.ParseMetadata(c.Path, text); err != nil { // told where the configuration is read
			return v
		}
	default:
		return v
	}
	all, _ := m.Value("distillation")
	if all.Kind() != strictjson.Object {
		return v
	}
	v, _ = all.Get(key)
	return v
}
