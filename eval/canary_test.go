package eval_test

import (
	"context"
	"math"
	"testing"

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

// nats scores an opened model on the beginning of the held-out text, on a device of its own.
func nats(t *testing.T, f *modelfile.Files, w *corpus.Windows) []eval.Position {
	t.Helper()
	d := modeltest.CPU(t, cpu.Options{})
	if err := f.CheckTensors(); err != nil {
		t.Fatal(err)
	}
	m, err := model.LoadFrozen(d, f, device.StudentWeights)
	if err != nil {
		t.Fatal(err)
	}
	all, err := eval.Positions(context.Background(), d.NewStream(), nil, m, w, eval.Options{Vocab: 4096})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func score(all []eval.Position) eval.Score {
	return eval.Score{Value: math.Exp(eval.Summarise(all, false).NatsPerToken), Items: eval.Clusters(all, func(p eval.Position) float64 { return p.Own.CE })}
}

// All canaries of the shared model and of llama.cpp's quantisation of it are worse than the healthy model by more than
// five standard errors and fail a gate that it passes; those whose loss is known have it.
func TestCanaries(t *testing.T) {
	for _, path := range []string{gosrc, gosrc + "-q4_k_m.gguf"} {
		f := modeltest.Open(t, path)
		text := heldOut(t, f)
		w, err := corpus.NewWindows(&corpus.Tokens{IDs: text.IDs[:1025]}, 256, 256)
		if err != nil {
			t.Fatal(err)
		}
		constant := eval.MostFrequent(text.IDs)
		healthy := score(nats(t, f, w))
		gate := healthy.Value * 1.2
		canaries := eval.Canaries(f, 4096, constant, 1)
		if len(canaries) != 6 {
			t.Fatalf("%d canaries", len(canaries))
		}
		for _, c := range canaries {
			all := nats(t, c.Files, w)
			got := score(all)
			mean, errors := healthy.Advantage(got)
			t.Logf("%s: %s: perplexity %.4g, healthy %.4g; worse by %.3f nats, %.1f standard errors", path, c.Name, got.Value, healthy.Value, mean, errors)
			if !(errors >= 5) || got.Passes(gate) {
				t.Errorf("%s: %s passes or is no worse", path, c.Name)
			}
			contracttest.Cases(t, 1)
			if c.Name == "zeroed" {
				near.CheckRel(t, "uniform predictions", []float64{got.Value}, []float64{4096}, 1e-5)
			}
			if c.Name == "constant answer" {
				checkConstant(t, all, text.IDs, constant)
			}
		}
		// What is left of the healthy model is the healthy model.
		if again := score(nats(t, f, w)); again.Value != healthy.Value {
			t.Errorf("%s: perplexity was %g, is %g", path, healthy.Value, again.Value)
		}
	}
}

// checkConstant: certain everywhere, right exactly where the id comes.
func checkConstant(t *testing.T, all []eval.Position, ids []int32, constant int32) {
	t.Helper()
	right := 0
	for _, p := range all {
		if p.Own.Right != (ids[p.At] == constant) || !(p.Own.Confidence > 0.999) {
			t.Fatalf("token %d: right %v, confidence %g", p.At, p.Own.Right, p.Own.Confidence)
		}
		if p.Own.Right {
			right++
		}
	}
	if right == 0 || right == len(all) {
		t.Errorf("right at %d of %d", right, len(all))
	}
}

// A model with a tied head has canaries too.
func TestCanariesTied(t *testing.T) {
	f := modeltest.Open(t, golden+"/student")
	if !f.Config.Tied {
		t.Fatal("the golden student is not tied")
	}
	text := randomText(65, 320)
	text.Mask = nil
	for i := range text.IDs {
		text.IDs[i] = 7
	}
	w, err := corpus.NewWindows(text, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	d := modeltest.CPU(t, cpu.Options{})
	for _, c := range eval.Canaries(f, 320, 7, 1) {
		m, err := model.LoadFrozen(d, c.Files, device.StudentWeights)
		if err != nil {
			t.Fatal(err)
		}
		all, err := eval.Positions(context.Background(), d.NewStream(), nil, m, w, eval.Options{Vocab: 320})
		if err != nil {
			t.Fatal(err)
		}
		if got := eval.Summarise(all, false).NatsPerToken; c.Name == "constant answer" && !(got < 1e-3) {
			t.Errorf("constant answer on constant text: %g nats", got)
		}
	}
}
