package convert

import (
	"maps"
	"strings"

	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// carried are the metadata keys about a model's origin that a conversion keeps.
var carried = []string{
	"name", "description", "author", "version", "license", "data_source", "data_license", "source", "original_format", "created_at",
	"distillation", "source_metadata",
}

// writeAPR writes the tensors with the configuration, tokenizer and origin of c.
func writeAPR(c *Container, out string, sources []tensor.Source, opt Options) error {
	meta, tied, err := aprMetadata(c, opt)
	if err != nil {
		return err
	}
	return aprfile.Write(out, sources, aprfile.Options{Force: opt.Force, Metadata: meta, Writer: writer(opt), Tied: tied})
}

// writeSafetensors writes one file that carries configuration, tokenizer and origin of c as a string of its metadata,
// beside the strings that c had.
func writeSafetensors(c *Container, out string, sources []tensor.Source, opt Options) error {
	meta, tied, err := aprMetadata(c, opt)
	if err != nil {
		return err
	}
	meta["tied_embeddings"] = tied
	text, err := strictjson.AppendCanonical(nil, meta)
	if err != nil {
		return err
	}
	texts := map[string]string{}
	if f, ok := c.Stored.(*safetensors.File); ok {
		maps.Copy(texts, f.Metadata())
	}
	texts[modelfile.SafetensorsKey] = string(text)
	return safetensors.Write(out, sources, safetensors.Options{Force: opt.Force, Metadata: texts})
}

// aprMetadata returns the metadata of an .apr file of c, and whether its head is tied.
func aprMetadata(c *Container, opt Options) (meta map[string]any, tied bool, err error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, false, err
	}
	tok, err := c.Tokenizer()
	if err != nil {
		return nil, false, err
	}
	extra := map[string]any{"original_format": c.Format}
	if opt.Scheme.Quantises() {
		extra["quantization"] = map[string]any{"quant_type": string(opt.Scheme)}
	}
	m, err := c.metadata()
	if err != nil {
		return nil, false, err
	}
	if m != nil {
		keys := carried
		if opt.Scheme == Keep && opt.Pruned == nil { // what was cut is no blocks any more
			keys = append([]string{"quantization"}, carried...)
		}
		for _, key := range keys {
			if v, ok := m.Value(key); ok {
				extra[key] = v
			}
		}
	}
	if f, ok := c.Stored.(*gguf.File); ok {
		for _, key := range origins {
			if v, ok, err := f.Metadata().Str("general." + key); err == nil && ok {
				extra[key] = v
			}
		}
	}
	if _, known := extra["distillation"]; !known {
		if d := c.distillation(); len(d) > 0 {
			extra["distillation"] = d
		}
	}
	if pruned := c.pruned(opt); pruned != nil {
		extra[prunedKey] = pruned
	}
	meta = modelfile.APRMetadata(cfg, tok, extra)
	addSpecial(meta, "bos", tok, tok.BOS(), cfg.BOS)
	addSpecial(meta, "eos", tok, tok.EOS(), cfg.Sizes().EOS)
	return meta, cfg.Tied, nil
}

// distillation returns what a GGUF file or a folder says of the training, as .apr metadata has it.
func (c *Container) distillation() map[string]any {
	d := map[string]any{}
	if text := c.Learned(); text != "" {
		d["text"] = text
	}
	if writers := c.Writers(); len(writers) > 0 {
		d["writers"] = writers
	}
	return d
}

// metadata returns the .apr metadata of c, which a safetensors file may carry too; nil if there is none.
func (c *Container) metadata() (*aprfile.Metadata, error) {
	if c.apr != nil {
		return c.apr.Metadata(), nil
	}
	if f, ok := c.Stored.(*safetensors.File); ok {
		if text, ok := f.Metadata()[modelfile.SafetensorsKey]; ok {
			return aprfile.ParseMetadata(c.Path, text)
		}
	}
	return nil, nil
}

// writer names the program in a file.
func writer(opt Options) string {
	if opt.Version == "" {
		return ""
	}
	return "apr/" + opt.Version
}

// addSpecial writes the id of a begin or end token that only the configuration names, as folders' config.json does.
func addSpecial(meta map[string]any, name string, tok *tokenizer.Tokenizer, has int32, id int) {
	if has != tokenizer.None || id < 0 || id >= tok.RealIDs() {
		return
	}
	meta["tokenizer."+name+"_token_id"] = id
	special, ok := meta["special_tokens"].(map[string]any)
	if !ok {
		special = map[string]any{}
		meta["special_tokens"] = special
	}
	if text, ok := tok.Bytes(int32(id)); ok {
		special[name+"_token"] = text
	}
}

// provenance returns what a file says about its origin.
func (c *Container) provenance() map[string]any {
	out := map[string]any{}
	switch f := c.Stored.(type) {
	case *safetensors.File:
		for k, v := range f.Metadata() {
			if k != modelfile.SafetensorsKey && k != prunedKey {
				out[k] = v
			}
		}
	case *gguf.File:
		for _, key := range f.Metadata().Keys() {
			name, ok := strings.CutPrefix(key, "general.")
			if v, is, err := f.Metadata().Str(key); err == nil && is && ok && name != "architecture" && name != "type" {
				out[name] = v
			}
		}
	}
	if m, err := c.metadata(); err == nil && m != nil { // what is wrong with it is said where the configuration is read
		for _, key := range append([]string{"writer", "quantization"}, carried...) {
			if v, ok := m.Value(key); ok {
				out[key] = plain(v)
			}
		}
	}
	if v, ok := c.pruned(Options{}).(strictjson.Value); ok {
		out[prunedKey] = plain(v)
	}
	return out
}

// plain turns a parsed JSON value into maps, slices, strings, numbers and booleans; depth is bounded by the parser. A
// number that no float64 holds stays as its text.
func plain(v strictjson.Value) any {
	switch v.Kind() {
	case strictjson.Object:
		m := map[string]any{}
		for k, x := range v.Members() {
			m[k] = plain(x)
		}
		return m
	case strictjson.Array:
		list := []any{}
		for x := range v.Items() {
			list = append(list, plain(x))
		}
		return list
	case strictjson.String:
		s, _ := v.Str()
		return s
	case strictjson.Bool:
		b, _ := v.Bool()
		return b
	case strictjson.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		s, _ := v.Literal()
		return s
	}
	return nil
}

// container judges what only an .apr file has: checksums, padding, deviations from the format, types of metadata.
func (j *judge) container(c *Container) error {
	if c.apr == nil {
		return nil
	}
	j.passed("format.header_crc", "the header checksum is right")
	if err := c.apr.Verify(); err != nil {
		return err
	}
	if _, ok := c.apr.Metadata().Value("writer"); ok || len(c.Warnings) == 0 {
		j.passed("format.footer_crc", "the checksum over the whole file is right")
	}
	for _, d := range c.apr.Deviations() {
		j.report("format.strict", Warning, "", "%s", d)
	}
	j.passed("format.strict", "everything is aligned")
	for _, err := range c.apr.Padding() {
		if fault.KindOf(err) != fault.Format {
			return err
		}
		j.report("format.padding", Failed, "", "%s", err)
	}
	j.passed("format.padding", "padding is zero and there are no holes")
	for _, err := range c.apr.Metadata().Check() {
		j.report("format.metadata", Failed, "", "%s", err)
	}
	j.passed("format.metadata", "metadata values have the types of the format")
	return nil
}
