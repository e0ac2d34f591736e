//go:build gpu || emulate

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"syscall"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/eval"
	"apr/generate"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
	"apr/modelfile"
	"apr/teacher"
	"apr/tensor"
)

const gosrc = "../../testdata/models/gosrc"

// openBoth opens the reference teacher on the CPU and on the GPU (or its emulator).
func openBoth(t *testing.T, compute cuda.Compute) (f *modelfile.Files, onCPU, onGPU *model.Model) {
	t.Helper()
	openEmulator(t)
	f = modeltest.Open(t, gosrc)
	host := modeltest.CPU(t, cpu.Options{})
	gpu, err := cuda.Open(cuda.Options{Compute: compute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gpu.Close() })
	for _, d := range []device.Device{host, gpu} {
		m := modeltest.On(t, d, f)
		if onCPU == nil {
			onCPU = m
		} else {
			onGPU = m
		}
	}
	return f, onCPU, onGPU
}

// TestCUDANats: both devices score the held-out text alike, to 3·10⁻⁴ nats a token.
func TestCUDANats(t *testing.T) {
	f, onCPU, onGPU := openBoth(t, heldOutCompute)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text := modeltest.Text(t, f, "../../examples/gosrc/data/gosrc-val.jsonl.zst")
	text.IDs = text.IDs[:min(len(text.IDs), heldOutTokens)]
	w, err := corpus.NewWindows(text, 512, 512)
	if err != nil {
		t.Fatal(err)
	}
	var nats [2]float64
	for i, m := range []*model.Model{onCPU, onGPU} {
		scores, err := eval.Compare(context.Background(), m.Device().NewStream(), nil, []eval.Subject{{Name: "gosrc", Model: m}}, w, eval.Options{Vocab: tok.RealIDs()})
		if err != nil {
			t.Fatal(err)
		}
		nats[i] = scores[0].NatsPerToken()
	}
	t.Logf("%d targets: CPU %.7f, GPU %.7f nats/token, difference %.2g", w.Len()*512, nats[0], nats[1], nats[1]-nats[0])
	near.Row(t, fmt.Sprintf("held-out nats/token, %d targets: GPU and CPU differ by", w.Len()*512), math.Abs(nats[1]-nats[0]), 3e-4)
}

// TestCUDABlocks: a teacher whose blocks stay on the GPU gives the logits that the CPU decodes from the same blocks.
func TestCUDABlocks(t *testing.T) {
	openEmulator(t)
	f := modeltest.Open(t, gosrc+"-q4_k_m.gguf")
	host := modeltest.CPU(t, cpu.Options{})
	gpu, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	ids := make([]int32, blockTokens)
	for i := range ids {
		ids[i] = int32((i*i*31 + 7*i) % 4096)
	}
	var z [2][]float32
	for i, d := range []device.Device{host, gpu} {
		if z[i], err = logitsOf(d, f, ids); err != nil {
			t.Fatal(err)
		}
	}
	cols, worst, kl := len(z[0])/len(ids), 1.0, 0.0
	for r := range ids {
		want, got := z[0][r*cols:(r+1)*cols], z[1][r*cols:(r+1)*cols]
		worst = math.Min(worst, cosine(want, got))
		kl += divergence(want, got) / float64(len(ids))
	}
	near.Row(t, fmt.Sprintf("teacher in blocks, %d positions: 1 − the least cosine of a row of logits, GPU and CPU", len(ids)), 1-worst, 5e-4)
	near.Row(t, fmt.Sprintf("teacher in blocks, %d positions: mean KL(CPU ‖ GPU)", len(ids)), kl, 1e-3)
}

// logitsOf returns the logits of every position of one sequence, with matrices kept in blocks.
func logitsOf(d device.Device, f *modelfile.Files, ids []int32) ([]float32, error) {
	m, err := model.LoadFrozenAs(d, f, device.TeacherWeights, device.Form{Blocks: true})
	if err != nil {
		return nil, err
	}
	n := len(ids)
	s, b := d.NewStream(), model.NewBatch(d, 1, n)
	mask := slices.Repeat([]uint8{1}, n)
	b.Load(s, corpus.Batch{Rows: 1, SeqLen: n, Tokens: ids, Targets: ids, Mask: mask}, 1)
	big := &teacher.Resident{Model: m}
	big.Begin(s, b)
	t := s.Temp("logits", device.Logits, tensor.F32, n, m.Config.Vocab)
	big.Logits(s, 0, n, t)
	z := make([]float32, n*m.Config.Vocab)
	return z, s.Download(z, t)
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// divergence returns KL(softmax(a) ‖ softmax(b)).
func divergence(a, b []float32) (kl float64) {
	lse := func(z []float32) float64 {
		top, sum := float64(slices.Max(z)), 0.0
		for _, v := range z {
			sum += math.Exp(float64(v) - top)
		}
		return top + math.Log(sum)
	}
	la, lb := lse(a), lse(b)
	for i := range a {
		kl += math.Exp(float64(a[i])-la) * (float64(a[i]) - la - float64(b[i]) + lb)
	}
	return kl
}

// TestCUDASignalThenResume: a run on a GPU stops and goes on like any other, to the same bits.
func TestCUDASignalThenResume(t *testing.T) {
	openEmulator(t)
	stopAndResume(t, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, "--backend", "cuda", "--steps", "12", "--batch-size", "1", "--seq-len", "16")
}

// TestCUDAGreedy: along the five reference continuations the GPU picks the reference's token wherever the CPU's logits
// put it at least 0.1 ahead, and generating by itself it gives the reference's ids up to the first closer place.
func TestCUDAGreedy(t *testing.T) {
	var ref struct {
		Greedy []struct {
			PromptIDs []int32 `json:"prompt_ids"`
			GreedyIDs []int32 `json:"greedy_ids"`
		}
	}
	b, err := os.ReadFile(gosrc + "/reference.json")
	if err == nil {
		err = json.Unmarshal(b, &ref)
	}
	if err != nil || len(ref.Greedy) != 5 {
		t.Fatalf("reference with %d continuations: %v", len(ref.Greedy), err)
	}
	f, onCPU, onGPU := openBoth(t, cuda.BF16)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	judged, wrong := 0, 0
	for i, want := range ref.Greedy {
		margins := forced(t, onCPU, want.PromptIDs, want.GreedyIDs, tok.RealIDs())
		picks := forced(t, onGPU, want.PromptIDs, want.GreedyIDs, tok.RealIDs())
		firstClose := len(want.GreedyIDs)
		for k := range margins {
			if margins[k].margin <= 0.1 {
				firstClose = min(firstClose, k)
				continue
			}
			judged++
			if picks[k].id != want.GreedyIDs[k] {
				wrong++
				t.Errorf("continuation %d, token %d: GPU picks %d, reference %d leads by %g", i, k, picks[k].id, want.GreedyIDs[k], margins[k].margin)
			}
		}
		got, err := generate.Generate(context.Background(), onGPU, onGPU.Device().NewStream(), want.PromptIDs,
			generate.Options{MaxTokens: len(want.GreedyIDs), RepeatPenalty: 1, Vocab: tok.RealIDs()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.IDs[:min(firstClose, len(got.IDs))], want.GreedyIDs[:firstClose]) {
			t.Errorf("continuation %d: %v, want %v up to token %d", i, got.IDs, want.GreedyIDs, firstClose)
		}
		t.Logf("continuation %d: %d of %d tokens alike, first margin below 0.1 at %d", i, alike(got.IDs, want.GreedyIDs), len(want.GreedyIDs), firstClose)
	}
	near.Row(t, fmt.Sprintf("greedy choices other than the reference's, of %d with a margin above 0.1", judged), float64(wrong), 0)
	if judged < 50 {
		t.Errorf("only %d places were judged", judged)
	}
}

func alike(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// pick is the greedy choice at one place and its lead over the second.
type pick struct {
	id     int32
	margin float64
}

// forced returns the greedy choice after the prompt and after every token of the continuation but the last.
func forced(t *testing.T, m *model.Model, prompt, continuation []int32, vocab int) (picks []pick) {
	t.Helper()
	d := m.Device()
	s := d.NewStream()
	cache := m.NewCache(len(prompt) + len(continuation))
	defer cache.Free(d)
	hidden := s.Temp("hidden", device.Activations, d.Info().Activations, 1, m.Config.Hidden)
	defer s.Release(hidden)
	next := prompt
	for k := range continuation {
		ids := s.Temp("ids", device.Batch, tensor.I32, len(next), 1)
		s.UploadInts(ids, next)
		m.Extend(s, hidden, cache, ids)
		s.Release(ids)
		z := make([]float32, vocab)
		if err := m.NextLogits(s, z, hidden); err != nil {
			t.Fatal(err)
		}
		best, second := 0, math.Inf(-1)
		for i, v := range z {
			switch {
			case v > z[best]:
				best, second = i, float64(z[best])
			case i != best:
				second = math.Max(second, float64(v))
			}
		}
		picks = append(picks, pick{int32(best), float64(z[best]) - second})
		next = continuation[k : k+1]
	}
	return picks
}
