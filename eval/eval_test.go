package eval_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/eval"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
	"apr/modelfile"
)

// reference is what transformers computes in float64 from the stored bfloat16 weights; see testdata/models/README.md.
type reference struct {
	ValTokens    int     `json:"val_tokens"`
	ValBytes     int64   `json:"val_bytes"`
	NatsPerToken float64 `json:"nats_per_token"`
	BitsPerByte  float64 `json:"bits_per_byte"`
}

const gosrc = "../testdata/models/gosrc"

func loadGosrc(t *testing.T) (device.Stream, *modelfile.Files, *model.Model) {
	t.Helper()
	return modeltest.Load(t, gosrc, cpu.Options{})
}

func heldOut(t *testing.T, f *modelfile.Files) *corpus.Tokens {
	t.Helper()
	return modeltest.Text(t, f, "../examples/gosrc/data/gosrc-val.jsonl.zst")
}

// The gate, 1e-5 relative, must see rotary frequencies rounded to bfloat16, which give 2.204901.
func TestReferenceNats(t *testing.T) {
	var want reference
	b, err := os.ReadFile(gosrc + "/reference.json")
	if err == nil {
		err = json.Unmarshal(b, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, f, m := loadGosrc(t)
	text := heldOut(t, f)
	if len(text.IDs) != want.ValTokens || text.TextBytes() != want.ValBytes {
		t.Fatalf("held-out text has %d tokens in %d bytes, reference %d in %d", len(text.IDs), text.TextBytes(), want.ValTokens, want.ValBytes)
	}
	w, err := corpus.NewWindows(text, 512, 512)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := eval.Compare(context.Background(), s, m, []eval.Subject{{Name: "gosrc", Model: m}}, w, eval.Options{Vocab: 4096})
	if err != nil {
		t.Fatal(err)
	}
	got := scores[0]
	if want := int64(w.Len() * 512); got.Targets != want {
		t.Errorf("%d targets scored, want %d", got.Targets, want)
	}
	t.Logf("%.7f nats/token (reference %.7f)", got.NatsPerToken(), want.NatsPerToken)
	near.CheckRel(t, "nats/token", []float64{got.NatsPerToken()}, []float64{want.NatsPerToken}, 1e-5)
	near.CheckRel(t, "bits/byte", []float64{eval.BitsPerByte(got.NatsPerToken(), text)}, []float64{want.BitsPerByte}, 1e-5)

	// Against itself: no divergence, full agreement.
	kl, _ := got.KL()
	top1, _ := got.Top1()
	near.Check(t, "KL(p‖p)", []float64{kl}, []float64{0}, 1e-9)
	near.Check(t, "top-1 agreement", []float64{top1}, []float64{1}, 0)
	contracttest.Cases(t, int(got.Targets))
}

// A model of all-zero weights has uniform logits: ln V nats and perplexity V; its divergence from a reference is ln V
// less the reference's entropy.
func TestUniformModel(t *testing.T) {
	s, f, m := loadGosrc(t)
	c := f.Config.Sizes()
	c.Layers, c.Hidden, c.Heads, c.KVHeads, c.HeadDim, c.Width = 1, 64, 1, 1, 64, 64
	zero := model.NewTrainable(m.Device(), arch.Qwen2(c)).Frozen()
	text := heldOut(t, f)
	text = &corpus.Tokens{IDs: text.IDs[:2049], EOS: text.EOS}
	w, err := corpus.NewWindows(text, 512, 512)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := eval.Compare(context.Background(), s, m, []eval.Subject{{Name: "zero", Model: zero}}, w, eval.Options{Vocab: 4096, ChunkRows: 100})
	if err != nil {
		t.Fatal(err)
	}
	got := scores[0]
	near.CheckRel(t, "nats/token", []float64{got.NatsPerToken()}, []float64{math.Log(4096)}, 1e-6)
	near.CheckRel(t, "perplexity", []float64{got.Perplexity()}, []float64{4096}, 1e-5)
	kl, _ := got.KL()
	entropy, _ := got.Entropy()
	near.CheckRel(t, "KL", []float64{kl}, []float64{math.Log(4096) - entropy}, 1e-5)
	contracttest.Cases(t, int(got.Targets))
}

// Overlapping windows score every target once.
func TestStrideScoresEveryTargetOnce(t *testing.T) {
	s, f, m := loadGosrc(t)
	text := heldOut(t, f)
	text = &corpus.Tokens{IDs: text.IDs[:64+3*16+1], EOS: text.EOS}
	w, err := corpus.NewWindows(text, 64, 16)
	if err != nil {
		t.Fatal(err)
	}
	scores, err := eval.Compare(context.Background(), s, nil, []eval.Subject{{Name: "gosrc", Model: m}}, w, eval.Options{Vocab: 4096, Rows: 2})
	if err != nil {
		t.Fatal(err)
	}
	if got := scores[0].Targets; got != 64+3*16 {
		t.Errorf("%d targets scored, want %d", got, 64+3*16)
	}
	if _, ok := scores[0].KL(); ok {
		t.Error("a KL is reported without a reference")
	}
	contracttest.Cases(t, int(scores[0].Targets))
}
