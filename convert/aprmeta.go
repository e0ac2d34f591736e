package convert

import (
	"apr/format/aprfile"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
	"apr/tokenizer"
)

// openAPR opens an .apr file; its configuration may be incomplete, which inspection shows.
func openAPR(name string) (*Container, error) {
	f, err := aprfile.Open(name)
	if err != nil {
		return nil, err
	}
	return &Container{
		Path: name, Format: "apr", Version: f.Version(), Files: f.Files(), Flags: f.Flags().Names(), File: f, Warnings: f.Warnings(),
		config:    func() (model.Config, error) { return model.OpenAPRConfig(f) },
		tokenizer: func() (*tokenizer.Tokenizer, error) { return model.OpenAPRTokenizer(f) },
		apr:       f,
	}, nil
}

// carried are the metadata keys about a model's origin that a conversion keeps.
var carried = []string{
	"name", "description", "author", "version", "license", "data_source", "data_license", "source", "original_format", "created_at",
	"distillation", "source_metadata",
}

// writeAPR writes the tensors with the configuration, tokenizer and origin of c.
func writeAPR(c *Container, out string, sources []tensor.Source, opt Options) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	tok, err := c.Tokenizer()
	if err != nil {
		return err
	}
	extra := map[string]any{"original_format": c.Format}
	if opt.Scheme.quantises() {
		extra["quantization"] = map[string]any{"quant_type": string(opt.Scheme)}
	}
	if c.apr != nil {
		for _, key := range carried {
			if v, ok := c.apr.Metadata().Value(key); ok {
				extra[key] = v
			}
		}
	}
	writer := ""
	if opt.Version != "" {
		writer = "apr/" + opt.Version
	}
	return aprfile.Write(out, sources, aprfile.Options{
		Force: opt.Force, Metadata: model.APRMetadata(cfg, tok, extra), Writer: writer, Tied: cfg.Tied,
	})
}

// provenance returns what a file says about its origin.
func (c *Container) provenance() map[string]any {
	out := map[string]any{}
	switch f := c.File.(type) {
	case *safetensors.File:
		for k, v := range f.Metadata() {
			out[k] = v
		}
	case *aprfile.File:
		all := f.Metadata().Map()
		for _, key := range append([]string{"writer", "quantization"}, carried...) {
			if v, ok := all[key]; ok {
				out[key] = v
			}
		}
	}
	return out
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
