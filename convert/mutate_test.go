package convert

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/arch"
	"apr/format/aprfile"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// smallAPR returns the bytes of an .apr file of one layer with a vocabulary of bytes.
func smallAPR(t testing.TB) []byte {
	t.Helper()
	full, err := tokenizer.Load(shared)
	if err != nil {
		t.Fatal(err)
	}
	d := full.Data()
	d.Vocabulary, d.TokenType, d.Merges = d.Vocabulary[:256], d.TokenType[:256], nil
	d.BOS, d.EOS, d.Pad, d.ChatTemplate = tokenizer.None, tokenizer.None, tokenizer.None, ""
	tok, err := tokenizer.FromData("small", d)
	if err != nil {
		t.Fatal(err)
	}
	cfg := arch.Qwen2(arch.Sizes{Hidden: 4, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 2, Width: 4, Vocab: 256,
		MaxPositions: 8, Theta: 10000, Eps: 1e-6, BOS: -1, EOS: -1,
	})
	var sources []tensor.Source
	for name, v := range sorted(weightsOf(cfg)) {
		raw := make([]byte, 4*len(v))
		tensor.Narrow(raw, v, tensor.F32)
		sources = append(sources, tensor.BytesSource(tensor.Info{Name: name, DType: tensor.F32, Shape: arch.Shapes(cfg)[name]}, raw))
	}
	var b bytes.Buffer
	if _, err := aprfile.Encode(&b, sources, aprfile.Options{Metadata: modelfile.APRMetadata(cfg, tok, nil)}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestMutatedFiles flips bits behind the header of a sound file, then inspects, validates, plans, compares and converts
// it: whatever the file holds, the answer is a report or a fault with an exit code of its own, never a panic.
func TestMutatedFiles(t *testing.T) {
	good := smallAPR(t)
	r := rand.New(rand.NewPCG(3, 4))
	dir := t.TempDir()
	path := filepath.Join(dir, "m")
	opened := 0
	for range 300 {
		data := slices.Clone(good)
		for range 1 + r.IntN(3) {
			data[64+r.IntN(len(data)-64)] ^= 1 << r.IntN(8)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(path)
		if err != nil {
			named(t, err)
			continue
		}
		opened++
		handle(t, c, filepath.Join(dir, "x.apr"))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if opened < 100 {
		t.Errorf("only %d files could be opened", opened)
	}
}

// handle does everything with a model that commands do.
func handle(t *testing.T, c *Container, out string) {
	t.Helper()
	ctx := context.Background()
	_, err := Summarize(ctx, c, false)
	named(t, err)
	_, err = Validate(ctx, c, ValidateOptions{Quality: true}, nil)
	named(t, err)
	_, err = Vocabulary(c)
	named(t, err)
	_, _, err = Plan(c, "x.apr", Options{Scheme: Q4_K_M})
	named(t, err)
	_, err = Diff(ctx, c, c, DiffOptions{Values: true}, nil)
	named(t, err)
	_, err = Write(ctx, c, out, Options{Scheme: BF16, Force: true})
	named(t, err)
}

// named requires an error, if there is one, to be a fault of a kind of its own.
func named(t *testing.T, err error) {
	t.Helper()
	if fault.KindOf(err) == fault.Other {
		t.Errorf("error without a kind: %v", err)
	}
}
