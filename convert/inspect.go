package convert

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/tokenizer"
)

// Summary describes a model file.
type Summary struct {
	File         string         `json:"file"`
	Format       string         `json:"format"`
	Version      *string        `json:"version"` // of the .apr format
	Flags        []string       `json:"flags"`
	Architecture string         `json:"architecture"`
	Config       map[string]any `json:"config"`
	ParamCount   int64          `json:"param_count"` // elements of all tensors, a shared head counted once
	TensorCount  int            `json:"tensor_count"`
	SizeBytes    int64          `json:"size_bytes"` // on disk
	DTypes       map[string]int `json:"dtypes"`     // type → tensors
	Tied         bool           `json:"tied"`
	NotComputed  string         `json:"not_computed,omitempty"` // what the model has that keeps it from being run and trained yet
	Left         []string       `json:"left,omitempty"`         // tensors of other parts of a multimodal model, which are not read
	Tokenizer    map[string]any `json:"tokenizer"`
	Provenance   map[string]any `json:"provenance"`
	SHA256       *string        `json:"sha256"`  // null unless asked for
	Content      Content        `json:"content"` // whether the payloads are known to be those that were written
	Warnings     []string       `json:"warnings"`
}

// Content says what is known of a model's payloads.
type Content string

// What is known.
const (
	Checked    Content = "checked"     // all bytes were read, and the checksums are right
	NotChecked Content = "not checked" // headers alone were read
	Damaged    Content = "damaged"     // the checksums are wrong
	NoChecksum Content = "no checksum" // nothing in the file shows whether a byte has changed
)

// Content returns what is known of c: whether all of it was read and verified is for the caller to say.
func (c *Container) Content(verified bool) Content {
	switch {
	case c.apr == nil || !c.apr.HasChecksum():
		return NoChecksum
	case verified:
		return Checked
	}
	return NotChecked
}

// Summarize describes an opened model from its headers, the tokenizer by its outline, for Validate judges its content;
// with hash it also reads the files, and refuses damaged ones. The hash of a model of several files is that over their
// names and hashes, one "HASH  NAME" line each.
func Summarize(ctx context.Context, c *Container, hash bool) (*Summary, error) {
	size, err := c.Size()
	if err != nil {
		return nil, err
	}
	s := &Summary{
		File: c.Path, Format: c.Format, Flags: c.Flags, SizeBytes: size, TensorCount: len(c.File.Tensors()),
		Config: map[string]any{}, DTypes: map[string]int{}, Tokenizer: map[string]any{}, Provenance: c.provenance(), Left: c.Left, Warnings: c.Warnings,
	}
	if c.Version != "" {
		s.Version = &c.Version
	}
	for _, t := range c.weights("") {
		s.ParamCount += t.Elements()
	}
	for _, t := range c.File.Tensors() {
		s.DTypes[t.Held().DType.String()]++
	}
	s.describeConfig(c)
	s.describeTokenizer(c)
	if s.Content = c.Content(hash); hash {
		sum, err := c.hashFiles(ctx)
		if err == nil {
			err = c.Verify()
		}
		if err != nil {
			return nil, err
		}
		s.SHA256 = &sum
	}
	return s, nil
}

func (s *Summary) describeConfig(c *Container) {
	cfg, err := c.Config()
	if err != nil {
		s.Warnings = append(s.Warnings, "no usable configuration: "+err.Error())
		return
	}
	s.Architecture, s.Tied, s.NotComputed = cfg.Family, cfg.Tied, cfg.NotComputed()
	for _, f := range ConfigFields(cfg) {
		s.Config[f.Key] = f.Value
	}
}

func (s *Summary) describeTokenizer(c *Container) {
	t, err := c.Outline()
	if err != nil {
		s.Warnings = append(s.Warnings, "no usable tokenizer: "+err.Error())
		return
	}
	s.Tokenizer = map[string]any{
		"tokens": t.Tokens, "merges": t.Merges, "pre_type": t.PreType, "add_bos": t.AddBOS, "chat_template": t.ChatTemplate,
	}
	for name, id := range map[string]int32{"bos_id": t.BOS, "eos_id": t.EOS, "pad_id": t.Pad} {
		if id != tokenizer.None {
			s.Tokenizer[name] = id
		}
	}
	if !t.ChatTemplate {
		return
	}
	if tok, err := c.Tokenizer(); err == nil { // a vocabulary that cannot be used is for Validate
		s.Warnings = append(s.Warnings, c.CheckTemplate(tok)...)
	}
}

// Token is one entry of a vocabulary.
type Token struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
	Kind string `json:"kind"`
}

// Vocabulary lists the real ids of a model in order.
func Vocabulary(c *Container) ([]Token, error) {
	t, err := c.Tokenizer()
	if err != nil {
		return nil, err
	}
	kinds := map[tokenizer.Kind]string{
		tokenizer.Normal: "normal", tokenizer.Unknown: "unknown", tokenizer.Control: "control", tokenizer.UserDefined: "user-defined", tokenizer.Byte: "byte",
	}
	var out []Token
	for id := range int32(t.RealIDs()) {
		if text, ok := t.Bytes(id); ok {
			out = append(out, Token{id, text, kinds[t.Kind(id)]})
		}
	}
	return out, nil
}

// hashFiles returns the SHA-256 of the model's file, or of the list of several. Verify has all bytes then.
func (c *Container) hashFiles(ctx context.Context) (string, error) {
	list := sha256.New()
	for i, name := range c.Files {
		sum, err := c.hashFile(ctx, i)
		if err != nil || len(c.Files) == 1 {
			return sum, err
		}
		fmt.Fprintf(list, "%s  %s\n", sum, filepath.Base(name))
	}
	return hex.EncodeToString(list.Sum(nil)), nil
}

// hashFile returns the SHA-256 of one of the model's files.
func (c *Container) hashFile(ctx context.Context, i int) (string, error) {
	name := c.Files[i]
	var r io.Reader
	if c.apr != nil {
		r = c.apr.Contents()[i]
	} else {
		f, err := os.Open(name)
		if err != nil {
			return "", readfile.Fault(name, err)
		}
		defer f.Close()
		r = f
	}
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		switch {
		case errors.Is(err, io.EOF):
			return hex.EncodeToString(h.Sum(nil)), nil
		case err != nil:
			return "", fault.In(fault.IO, name, "cannot be read").Because(err)
		}
	}
}
