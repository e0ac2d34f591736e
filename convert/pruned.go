package convert

import (
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/strictjson"
	"apr/modelfile"
)

// prunedKey holds how a model was cut out of another: an object in .apr metadata, its text in the metadata of a
// folder's safetensors.
const prunedKey = "prune"

// pruned returns how the model that is written was cut out of another: what the options say, or else the file of c.
// nil: it was not.
func (c *Container) pruned(opt Options) any {
	if opt.Pruned != nil {
		return map[string]any(opt.Pruned)
	}
	if m, err := c.metadata(); err == nil && m != nil { // what is wrong with it is said where the configuration is read
		if v, ok := m.Value(prunedKey); ok {
			return v
		}
	}
	text := ""
	switch f := c.Stored.(type) {
	case *safetensors.File:
		text = f.Metadata()[prunedKey]
	case *gguf.File:
		text, _, _ = f.Metadata().Str(modelfile.PrunedKey)
	}
	if v, err := strictjson.Parse(text, strictjson.Options{}); err == nil && v.Kind() == strictjson.Object {
		return v
	}
	return nil
}

// prunedText is pruned as text, "" for none.
func (c *Container) prunedText(opt Options) (string, error) {
	v := c.pruned(opt)
	if v == nil {
		return "", nil
	}
	text, err := strictjson.AppendCanonical(nil, v)
	return string(text), err
}
