package convert

import (
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"apr/arch"
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// Container is an opened model with what inspection and conversion want to know beside it.
type Container struct {
	*modelfile.Container
	Format  string   // "safetensors", "apr" or "gguf"
	Version string   // of the .apr format, "2.0", or of GGUF, "3"; empty otherwise
	Files   []string // of the weights
	Flags   []string // names of the flags of an .apr file

	apr *aprfile.File // nil for other formats
}

// Config returns the model's configuration; the error says why there is none.
func (c *Container) Config() (arch.Config, error) { return c.ReadConfig() }

// Tokenizer returns the model's tokenizer; the error says why there is none.
func (c *Container) Tokenizer() (*tokenizer.Tokenizer, error) { return c.ReadTokenizer() }

// Bytes returns the payload bytes of all tensors; a tied head of an .apr file counts like any other entry.
func (c *Container) Bytes() int64 {
	var n int64
	for _, t := range c.File.Tensors() {
		n += t.Size
	}
	return n
}

// Size returns the bytes of the model's weight files on disk.
func (c *Container) Size() (int64, error) {
	var n int64
	for _, f := range c.Files {
		st, err := os.Stat(f)
		if err != nil {
			return 0, readfile.Fault(f, err)
		}
		n += st.Size()
	}
	return n, nil
}

// tied reports whether the head is the embedding.
func (c *Container) tied() bool {
	cfg, err := c.Config()
	return err == nil && cfg.Tied
}

// weights returns the tensors whose names match the glob filter, without the copy of a tied head, an empty head, and
// old optimiser state.
func (c *Container) weights(filter string) []tensor.Stored {
	tied := c.tied()
	var out []tensor.Stored
	for _, t := range c.File.Tensors() {
		head := t.Name == headName && (tied || t.Size == 0)
		if head || strings.HasPrefix(t.Name, "__training__.") || !Match(filter, t.Name) {
			continue
		}
		out = append(out, t)
	}
	return out
}

// Match reports whether name matches the glob pattern; the empty pattern matches all, a pattern without wildcards
// matches as a part of the name.
func Match(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	if !strings.ContainsAny(pattern, `*?[\`) {
		return strings.Contains(name, pattern)
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// Open opens a model file, an index of shards, or the model in a directory (see format.Find). Keys of config.json in allow
// are accepted unread.
func Open(name string, allow ...string) (*Container, error) {
	m, err := modelfile.OpenContainer(name, allow...)
	if err != nil {
		return nil, err
	}
	c := &Container{Container: m, Format: string(m.Kind)}
	switch f := m.Stored.(type) {
	case *aprfile.File:
		c.apr, c.Version, c.Files, c.Flags = f, f.Version(), f.Files(), f.Flags().Names()
	case *safetensors.File:
		c.Files = f.Files()
	case *gguf.File:
		c.Version, c.Files = strconv.Itoa(f.Version()), f.Files()
	}
	return c, nil
}

// diffMetadata compares formats' independent properties: configuration and tokenizer.
func diffMetadata(a, b *Container) []MetadataDiff {
	var out []MetadataDiff
	ca, errA := a.Config()
	cb, errB := b.Config()
	switch {
	case errA == nil && errB == nil:
		out = diffConfig(ca, cb)
	case errA == nil || errB == nil:
		out = append(out, MetadataDiff{"config", presence(errA), presence(errB)})
	}
	ta, errA := a.Tokenizer()
	tb, errB := b.Tokenizer()
	if errA == nil && errB == nil {
		if d := tokenizer.Compare(ta, tb); d != nil {
			out = append(out, MetadataDiff{"tokenizer." + d.What, d.A, d.B})
		}
	} else if (errA == nil) != (errB == nil) {
		out = append(out, MetadataDiff{"tokenizer", presence(errA), presence(errB)})
	}
	return out
}

// presence says whether there is such a property, or why it cannot be read: null where there is none.
func presence(err error) any {
	switch {
	case err == nil:
		return "present"
	case modelfile.HasNoTokenizer(err), fault.KindOf(err) == fault.NotFound:
		return nil
	}
	return err.Error()
}

// diffConfig lists the fields in which two configurations differ: those of ConfigFields by their names there, others by their
// paths in the description. The stored type is a matter of the tensors.
func diffConfig(a, b arch.Config) []MetadataDiff {
	var out []MetadataDiff
	x, y := ConfigFields(a), ConfigFields(b)
	for i := range x {
		if !reflect.DeepEqual(x[i].Value, y[i].Value) {
			out = append(out, MetadataDiff{x[i].Key, x[i].Value, y[i].Value})
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, d := range arch.Compare(a, b) {
		if d.Computes() {
			out = append(out, MetadataDiff{d.Path, d.A, d.B})
		}
	}
	return out
}

// ConfigField is one value of a configuration under its Hugging Face name.
type ConfigField struct {
	Key   string
	Value any
}

// ConfigFields lists the values that decide the computation, in a fixed order. Those of linear attention and of experts
// come last, and only for models that have these.
func ConfigFields(c arch.Config) []ConfigField {
	s := c.Sizes()
	eos := any(s.EOS)
	if len(c.EOS) > 1 {
		eos = c.EOS
	}
	fields := []ConfigField{
		{"model_type", c.Family}, {"hidden_size", s.Hidden}, {"num_hidden_layers", s.Layers},
		{"num_attention_heads", s.Heads}, {"num_key_value_heads", s.KVHeads}, {"head_dim", s.HeadDim},
		{"intermediate_size", s.Width}, {"vocab_size", s.Vocab}, {"max_position_embeddings", s.MaxPositions},
		{"rope_theta", s.Theta}, {"rms_norm_eps", s.Eps}, {"tie_word_embeddings", s.Tied},
		{"bos_token_id", s.BOS}, {"eos_token_id", eos},
	}
	linear := 0
	for _, l := range c.Layers {
		if l.Linear() {
			linear++
		}
	}
	if linear > 0 {
		fields = append(fields, ConfigField{"linear_attention_layers", linear})
	}
	if i := slices.IndexFunc(c.Layers, func(l arch.Layer) bool { return l.FFN.MoE.Experts > 0 }); i >= 0 {
		m := c.Layers[i].FFN.MoE
		fields = append(fields, ConfigField{"num_experts", m.Experts}, ConfigField{"num_experts_per_tok", m.Active},
			ConfigField{"moe_intermediate_size", m.Width})
	}
	return fields
}
