// Command synth makes model files for measuring: a published shape with random or zero weights, in any format. Files of
// zeros are sparse, so that one of 15 GB takes no disk.
//
//	go run ./bench/synth -shape 7b -zero -tokenizer testdata/models/gosrc -o /tmp/zero.gguf
//	go run ./bench/synth -shape 7b -scheme q4_k_m -tokens 151665 -o /tmp/random.gguf
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

func main() {
	var o options
	flag.StringVar(&o.shape, "shape", "0.5b", "published shape, such as 0.5b or qwen3-8b")
	flag.IntVar(&o.layers, "layers", 0, "the first so many layers")
	flag.StringVar(&o.scheme, "scheme", "", "random blocks of this scheme, such as q4_k_m, instead of bfloat16")
	flag.BoolVar(&o.zero, "zero", false, "zeros, as a sparse file")
	flag.StringVar(&o.tokenizer, "tokenizer", "testdata/models/gosrc", "folder of the tokenizer")
	flag.BoolVar(&o.fill, "fill", false, "made-up tokens for the ids that the tokenizer lacks, so that generation computes every row of the head")
	flag.IntVar(&o.tokens, "tokens", 0, "make up tokens and merges until there are so many")
	flag.StringVar(&o.out, "o", "", "file that ends in .apr or .gguf, else a folder")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(fault.ExitCode(err))
	}
}

type options struct {
	shape, tokenizer, out string
	scheme                string
	layers, tokens        int
	zero, fill            bool
}

func (o options) run() error {
	c, err := bench.Shape(o.shape)
	if err != nil {
		return err
	}
	if o.layers > 0 {
		c.Layers = c.Layers[:min(o.layers, len(c.Layers))]
	}
	tok, err := tokenizer.Load(o.tokenizer)
	if err != nil {
		return err
	}
	if o.fill {
		if tok, err = filled(tok, c.Vocab); err != nil {
			return err
		}
	}
	if tok, err = grow(tok, o.tokens); err != nil {
		return err
	}
	c.BOS, c.EOS = int(tok.EOS()), []int{int(tok.EOS())}
	f := bench.RandomModel(c, 1)
	if o.scheme != "" {
		if f, err = bench.RandomQuantised(c, 1, convert.Scheme(o.scheme)); err != nil {
			return err
		}
	}
	var sources []tensor.Source
	for _, t := range f.File.Tensors() {
		s := t.Source()
		if o.zero {
			s.Payload = func(w io.Writer) error { return zeros(w, t.Size) }
		}
		if len(t.Shape) == 1 && filepath.Ext(o.out) != "" {
			s = float32s(s, t.Size, o.zero) // norms and biases, as both formats have them
		}
		sources = append(sources, s)
	}
	switch filepath.Ext(o.out) {
	case ".apr":
		return o.write(o.out, func(w io.Writer) (int64, error) {
			return aprfile.Encode(w, sources, aprfile.Options{Metadata: modelfile.APRMetadata(c, tok, nil), Tied: c.Tied})
		})
	case ".gguf":
		stored, err := modelfile.GGUFTensors(c, sources)
		if err != nil {
			return err
		}
		return o.write(o.out, func(w io.Writer) (int64, error) {
			return gguf.Encode(w, stored, modelfile.GGUFMetadata(c, tok, sources, modelfile.GGUFOrigin{Name: "synthetic"}))
		})
	}
	return o.folder(c, tok, sources)
}

// filled returns tok with tokens for all ids below n.
func filled(tok *tokenizer.Tokenizer, n int) (*tokenizer.Tokenizer, error) {
	d := tok.Data()
	parts := []string{"þ", "ÿ"} // bytes that no text has; each token joins one of those before and one of these, as merges do
	for i := 0; len(d.Vocabulary) < n; i++ {
		left, right := parts[i/2], parts[i%2]
		parts = append(parts, left+right)
		d.Vocabulary, d.TokenType = append(d.Vocabulary, left+right), append(d.TokenType, int(tokenizer.Normal))
		d.Merges = append(d.Merges, left+" "+right)
	}
	return tokenizer.FromData("filled tokenizer", d)
}

// grow makes up tokens until there are n: each joins two others, as a merge does.
func grow(tok *tokenizer.Tokenizer, n int) (*tokenizer.Tokenizer, error) {
	d := tok.Data()
	known := map[string]bool{}
	for _, text := range d.Vocabulary {
		known[text] = true
	}
	var parts []string
	for i, text := range d.Vocabulary {
		if tokenizer.Kind(d.TokenType[i]) == tokenizer.Normal {
			parts = append(parts, text)
		}
	}
	for i := 0; len(d.Vocabulary) < n; i++ {
		left, right := parts[i%len(parts)], parts[i/len(parts)]
		if text := left + right; !known[text] {
			known[text] = true
			d.Vocabulary, d.TokenType = append(d.Vocabulary, text), append(d.TokenType, int(tokenizer.Normal))
			d.Merges = append(d.Merges, left+" "+right)
		}
	}
	return tokenizer.FromData("made-up tokenizer", d)
}

// float32s is a tensor of one dimension in float32.
func float32s(s tensor.Source, size int64, zero bool) tensor.Source {
	narrow := s.Payload
	s.DType, s.Size = tensor.F32, 2*size
	s.Payload = func(w io.Writer) error {
		if zero {
			return zeros(w, s.Size)
		}
		var b bytes.Buffer
		if err := narrow(&b); err != nil {
			return err
		}
		values := make([]float32, size/2)
		tensor.Widen(values, b.Bytes(), tensor.BF16)
		wide := make([]byte, s.Size)
		tensor.Narrow(wide, values, tensor.F32)
		_, err := w.Write(wide)
		return err
	}
	return s
}

// folder writes a Hugging Face folder with one file of weights, whatever its size.
func (o options) folder(c arch.Config, tok *tokenizer.Tokenizer, sources []tensor.Source) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	config, err := arch.HFConfig(c, tensor.BF16)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"config.json": config, "tokenizer.json": tok.MarshalTokenizer(), "tokenizer_config.json": tok.MarshalConfig(c.MaxPositions),
	} {
		if err := os.WriteFile(filepath.Join(o.out, name), data, 0o644); err != nil {
			return err
		}
	}
	return o.write(filepath.Join(o.out, safetensors.SingleName), func(w io.Writer) (int64, error) {
		return safetensors.Encode(w, sources, nil)
	})
}

// write makes a file, with a hole for every stretch of zeros.
func (o options) write(path string, encode func(io.Writer) (int64, error)) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	size, err := encode(&sparse{file: file})
	if err != nil {
		return err
	}
	if err := file.Truncate(size); err != nil {
		return err
	}
	return file.Close()
}

var zero [1 << 20]byte

func zeros(w io.Writer, n int64) error {
	for n > 0 {
		k, err := w.Write(zero[:min(n, int64(len(zero)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

// sparse passes over what is all zero.
type sparse struct{ file *os.File }

func (s *sparse) Write(p []byte) (int, error) {
	if len(p) >= 4096 && len(p) <= len(zero) && bytes.Equal(p, zero[:len(p)]) {
		_, err := s.file.Seek(int64(len(p)), io.SeekCurrent)
		return len(p), err
	}
	return s.file.Write(p)
}
