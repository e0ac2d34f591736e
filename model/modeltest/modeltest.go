// Package modeltest opens models, devices and texts for tests, and closes them when the test ends.
package modeltest

import (
	"context"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/modelfile"
)

// CPU returns a device.
func CPU(t testing.TB, o cpu.Options) *cpu.Device {
	t.Helper()
	d, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Open opens a model.
func Open(t testing.TB, path string) *modelfile.Files {
	t.Helper()
	f, err := modelfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// On loads a model, frozen, on a device.
func On(t testing.TB, d device.Device, f *modelfile.Files) *model.Model {
	t.Helper()
	m, err := model.LoadFrozen(d, f, device.TeacherWeights)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Load opens a model and loads it on a CPU, on which the stream is.
func Load(t testing.TB, path string, o cpu.Options) (device.Stream, *modelfile.Files, *model.Model) {
	t.Helper()
	d, f := CPU(t, o), Open(t, path)
	return d.NewStream(), f, On(t, d, f)
}

// Text returns the ids of the documents in a file, as a model's tokenizer has them.
func Text(t testing.TB, f *modelfile.Files, path string) *corpus.Tokens {
	t.Helper()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	enc, err := corpus.ForTokenizer(tok, "none")
	if err != nil {
		t.Fatal(err)
	}
	eos, err := corpus.EndOfText(tok)
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := corpus.Load(context.Background(), []string{path}, enc, corpus.EncodeOptions{EOS: eos, Vocab: tok.RealIDs()})
	if err != nil {
		t.Fatal(err)
	}
	return text
}
