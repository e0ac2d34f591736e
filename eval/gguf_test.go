package eval_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
	"apr/tokenizer"
)

// llama.cpp's perplexity of its own quantisation gosrc-q4_k_m.gguf on the held-out texts; see
// testdata/models/README.md.
const llamaPerplexity = 8.3539

// TestPerplexityOfLlamaCPP scores a file of llama.cpp by llama.cpp's protocol: the texts joined by a newline, windows of
// 512 tokens side by side, the last 255 predictions of each, probabilities over all rows of the vocabulary.
func TestPerplexityOfLlamaCPP(t *testing.T) {
	const window, scored = 512, 255
	d := modeltest.CPU(t, cpu.Options{})
	f := modeltest.Open(t, "../testdata/models/gosrc-q4_k_m.gguf")
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.On(t, d, f)
	ids := tok.Encode(joined(t), tokenizer.PlainText)
	s := d.NewStream()
	const rows = 4
	batch := model.NewBatch(d, rows, window-1)
	defer batch.Free(d)
	var nats float64
	var n int64
	for lo := 0; lo+window <= len(ids); lo += rows * window {
		b := corpus.Batch{SeqLen: window - 1}
		for j := lo; j+window <= len(ids) && b.Rows < rows; j += window {
			mask := make([]uint8, window-1)
			for i := window - 1 - scored; i < len(mask); i++ {
				mask[i] = 1
			}
			b.Rows++
			b.Tokens, b.Targets, b.Mask = append(b.Tokens, ids[j:j+window-1]...), append(b.Targets, ids[j+1:j+window]...), append(b.Mask, mask...)
		}
		batch.Load(s, b, b.Rows)
		sum := lossOver(t, s, m, batch)
		nats += sum.CE
		n += sum.Positions
	}
	if windows := len(ids) / window; n != int64(windows*scored) || windows < 100 {
		t.Fatalf("%d targets of %d windows scored", n, windows)
	}
	got := math.Exp(nats / float64(n))
	t.Logf("perplexity %.4f over %d targets; llama.cpp: %.4f", got, n, llamaPerplexity)
	near.CheckRel(t, "perplexity", []float64{got}, []float64{llamaPerplexity}, 0.01)
	contracttest.Cases(t, int(n))
}

// joined returns the held-out texts with a newline between.
func joined(t *testing.T) string {
	t.Helper()
	var texts []string
	_, err := corpus.Read(context.Background(), []string{"../examples/gosrc/data/gosrc-val.jsonl.zst"}, corpus.ReadOptions{}, func(d corpus.Document) error {
		texts = append(texts, d.Text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(texts, "\n")
}

// lossOver returns the summed cross-entropy of a batch over all rows of the vocabulary.
func lossOver(t *testing.T, s device.Stream, m *model.Model, b *model.Batch) device.Scalars {
	t.Helper()
	act, positions := m.Device().Info().Activations, b.Tokens.Rows*b.Tokens.SeqLen
	x := s.Temp("hidden", device.Activations, act, positions, m.Config.Hidden)
	defer s.Release(x)
	m.Hidden(s, x, b.Tokens)
	kept := s.Temp("hidden.kept", device.Activations, act, b.N, m.Config.Hidden)
	defer s.Release(kept)
	s.Gather(kept, x, b.Keep)
	z := s.Temp("logits", device.Logits, tensor.F32, b.N, m.Config.Vocab)
	defer s.Release(z)
	m.Logits(s, z, kept)
	s.SetScalars(device.Scalars{InvN: 1})
	s.Loss(device.Tensor{}, z, device.Tensor{}, b.Targets, device.LossSpec{Alpha: 0, Temperature: 1})
	sum, err := s.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
