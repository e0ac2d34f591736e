package distill

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tensor"
	"apr/tokenizer"
)

const twoFunctions = `package sort

// Reverse returns the elements of s in the other order.
func Reverse(s []int) []int {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
	return s
}

// Sum returns the sum of all elements of s, which may be empty.
func Sum(s []int) (sum int) {
	for _, x := range s {
		sum += x
	}
	return sum
}
`

// A copy whose embedding is another model's where the text does not go is told by the divergence alone, and what has
// more to learn is not: no likeness of embeddings says anything here.
func TestFirstStepOfAStrangeTable(t *testing.T) {
	data := filepath.Join(t.TempDir(), "sort.txt")
	if err := os.WriteFile(data, []byte(twoFunctions), 0o600); err != nil {
		t.Fatal(err)
	}
	tok, err := openModel(t, "../testdata/models/gosrc").Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	used := tok.Encode(twoFunctions, tokenizer.PlainText)
	elsewhere := func(name string, cols int, v []float32) {
		if !strings.HasSuffix(name, "embed_tokens.weight") {
			return
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for id := range 4090 { // what follows marks the ends of texts
			if slices.Contains(used, int32(id)) {
				continue
			}
			for i := range cols {
				v[id*cols+i] = float32(0.02 * rng.NormFloat64())
			}
		}
	}
	for name, tt := range map[string]struct {
		student string
		agrees  bool
	}{ // the divergence is 0.13 and twice 2.2 of the teacher's entropy
		"a layer more, in codes":          {withLayer(t, both(groupCodes, elsewhere)), true},
		"a layer more, with noise":        {withLayer(t, both(noisy(0.36), elsewhere)), false},
		"of the teacher's sizes, with it": {changedCopy(t, tensor.F32, both(noisy(0.36), elsewhere)), false},
	} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) {
			c.Teacher, c.BatchSize, c.SeqLen = "../testdata/models/gosrc-q4_k_m.gguf", 3, 64
			c.Loss = device.LossSpec{Alpha: 0.5, Temperature: 1}
			c.AllowOddWeights, c.Data, c.AssistantOnly = true, []string{data}, false
			from(tt.student)(c)
		})
		if r.event(runlog.FirstStepAgrees) != tt.agrees || r.event(runlog.EmbeddingAgrees) ||
			strings.Contains(r.said, "its embedding") {
			t.Errorf("%s: messages %q", name, r.said)
		}
	}
}
