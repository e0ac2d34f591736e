package main

import (
	"bytes"
	"io"
	"os"

	"apr/format/aprfile"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// reference is the folder of the reference model, whose tokenizer has 4,096 ids.
const reference = "../../testdata/models/gosrc"

// filledTokenizer returns the tokenizer of the reference model with made-up tokens up to n.
func filledTokenizer(n int) (*tokenizer.Tokenizer, error) {
	tok, err := tokenizer.Load(reference)
	if err != nil {
		return nil, err
	}
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

// writeModel writes a made-up model as an .apr file.
func writeModel(path string, f *modelfile.Files, tok *tokenizer.Tokenizer) error {
	c := f.Config
	c.BOS, c.EOS = int(tok.EOS()), []int{int(tok.EOS())}
	var sources []tensor.Source
	for _, stored := range f.File.Tensors() {
		s := stored.Source()
		if len(stored.Shape) == 1 {
			s = widened(s)
		}
		sources = append(sources, s)
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := aprfile.Encode(out, sources, aprfile.Options{Metadata: modelfile.APRMetadata(c, tok, nil), Tied: c.Tied}); err != nil {
		return err
	}
	return out.Close()
}

// widened is a tensor of one dimension in float32, as .apr files have them.
func widened(s tensor.Source) tensor.Source {
	narrow, n := s.Payload, s.Size/2
	s.DType, s.Size = tensor.F32, 4*n
	s.Payload = func(w io.Writer) error {
		var b bytes.Buffer
		if err := narrow(&b); err != nil {
			return err
		}
		values, wide := make([]float32, n), make([]byte, 4*n)
		tensor.Widen(values, b.Bytes(), tensor.BF16)
		tensor.Narrow(wide, values, tensor.F32)
		_, err := w.Write(wide)
		return err
	}
	return s
}
