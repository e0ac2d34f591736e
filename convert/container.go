package convert

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strings"

	"apr/format/aprfile"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/model"
	"apr/tensor"
	"apr/tokenizer"
)

// Container is an opened model file of any format. The tensors are always there; configuration and tokenizer may be
// missing or wrong, which inspection shows and conversion refuses.
type Container struct {
	Path     string
	Format   string // "safetensors" or "apr"
	Version  string // of the .apr format, "2.0"; empty otherwise
	Files    []string
	Flags    []string // names of the flags of an .apr file
	File     tensor.File
	Warnings []string

	config    func() (model.Config, error)
	tokenizer func() (*tokenizer.Tokenizer, error)
	apr       *aprfile.File // nil for other formats
}

// Close releases the files.
func (c *Container) Close() error { return c.File.Close() }

// Config returns the model's configuration; the error says why there is none.
func (c *Container) Config() (model.Config, error) { return c.config() }

// Tokenizer returns the model's tokenizer; the error says why there is none.
func (c *Container) Tokenizer() (*tokenizer.Tokenizer, error) { return c.tokenizer() }

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

// Open opens a model file, or the model in a directory: an index, then model.safetensors, then a single *.gguf,
// *.apr.index.json or *.apr. What a file is, is found by its content.
func Open(name string) (*Container, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, readfile.Fault(name, err)
	}
	file := name
	if st.IsDir() {
		if file, err = modelIn(name); err != nil {
			return nil, err
		}
	}
	head, err := firstBytes(file)
	if err != nil {
		return nil, err
	}
	if err := refuse(file, head); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(head, []byte("APR")) || strings.HasSuffix(file, aprIndex) {
		return openAPR(file)
	}
	return openSafetensors(name, file)
}

// aprIndex ends the name of the index of a sharded .apr model.
const aprIndex = ".apr.index.json"

// modelIn returns the weights file of a directory; the directory itself stands for safetensors.
func modelIn(dir string) (string, error) {
	for _, n := range []string{safetensors.IndexName, safetensors.SingleName} {
		if _, err := os.Stat(filepath.Join(dir, n)); err == nil {
			return readfile.Inside(dir, n)
		}
	}
	for _, ext := range []string{"*.gguf", "*" + aprIndex, "*.apr"} {
		found, err := filepath.Glob(filepath.Join(escapeGlob(dir), ext))
		if err != nil {
			return "", fault.In(fault.NotFound, dir, "cannot be listed").Because(err)
		}
		switch len(found) {
		case 0:
		case 1:
			return readfile.Inside(dir, filepath.Base(found[0]))
		default:
			return "", fault.In(fault.NotFound, dir, "holds %d files %s; name one", len(found), ext).WithID("E-CONVERT-020")
		}
	}
	return "", fault.In(fault.NotFound, dir, "directory holds no model").
		WithHint("expected %s, %s, *.gguf or *.apr", safetensors.IndexName, safetensors.SingleName).WithID("E-CONVERT-021")
}

// escapeGlob quotes what filepath.Glob would read as a pattern.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// firstBytes returns up to eight bytes of a regular file.
func firstBytes(name string) ([]byte, error) {
	f, size, err := readfile.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, min(8, size))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, readfile.Fault(name, err)
	}
	return head, nil
}

// refuse names formats that are known by their first bytes and not read here.
func refuse(name string, head []byte) error {
	bad := func(format string, args ...any) error {
		return fault.In(fault.Format, name, format, args...).At("offset 0").WithID("E-CONVERT-022")
	}
	switch {
	case bytes.HasPrefix(head, []byte("GGUF")):
		return fault.In(fault.Unavailable, name, "reading GGUF files is not built yet").WithID("E-CONVERT-023")
	case bytes.HasPrefix(head, []byte("PK")):
		return bad("is a zip archive, as PyTorch writes; such files can hold code and are not read")
	case len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
		return bad("is a Python pickle; such files can hold code and are not read")
	}
	return nil
}

// openSafetensors opens a file, or a directory with its configuration and tokenizer.
func openSafetensors(name, file string) (*Container, error) {
	f, err := safetensors.Open(file)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(file)
	if name != file {
		dir = name
	}
	return &Container{
		Path: name, Format: "safetensors", Files: f.Files(), File: f, Warnings: f.Warnings(),
		config:    func() (model.Config, error) { return model.ReadConfig(filepath.Join(dir, "config.json")) },
		tokenizer: func() (*tokenizer.Tokenizer, error) { return tokenizer.Load(dir) },
	}, nil
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

func presence(err error) any {
	if err != nil {
		return nil
	}
	return "present"
}

// diffConfig lists the fields in which two configurations differ; the stored type is a matter of the tensors.
func diffConfig(a, b model.Config) []MetadataDiff {
	var out []MetadataDiff
	x, y := ConfigFields(a), ConfigFields(b)
	for i := range x {
		if x[i].Value != y[i].Value {
			out = append(out, MetadataDiff{x[i].Key, x[i].Value, y[i].Value})
		}
	}
	return out
}

// ConfigField is one value of a configuration under its Hugging Face name.
type ConfigField struct {
	Key   string
	Value any
}

// ConfigFields lists what decides the computation, in a fixed order.
func ConfigFields(c model.Config) []ConfigField {
	return []ConfigField{
		{"model_type", c.Architecture}, {"hidden_size", c.HiddenSize}, {"num_hidden_layers", c.Layers},
		{"num_attention_heads", c.Heads}, {"num_key_value_heads", c.KVHeads}, {"head_dim", c.HeadDim},
		{"intermediate_size", c.IntermediateSize}, {"vocab_size", c.VocabSize}, {"max_position_embeddings", c.MaxPositions},
		{"rope_theta", c.RopeTheta}, {"rms_norm_eps", c.RMSNormEps}, {"tie_word_embeddings", c.Tied},
		{"bos_token_id", c.BOS}, {"eos_token_id", c.EOS},
	}
}
