package main

import (
	"context"
	"encoding/json"
	"os"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
	"apr/tokenizer"
)

// logitsFile is what bench/peer/check_hf.py reads.
type logitsFile struct {
	Model  string      `json:"model"`
	Prompt string      `json:"prompt"`
	IDs    []int32     `json:"ids"`
	Logits [][]float32 `json:"logits"` // [ids, rows of the vocabulary]
}

// writeLogits computes the logits of every position of a prompt on the CPU.
func writeLogits(_ context.Context, out, path, prompt string) error {
	f, err := modelfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		return err
	}
	l := logitsFile{Model: path, Prompt: prompt, IDs: tok.Encode(prompt, tokenizer.Recognise)}
	if l.Logits, err = cpuLogits(f, l.IDs); err != nil {
		return err
	}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o644)
}

// cpuLogits returns the logits of every position, in float32.
func cpuLogits(f *modelfile.Files, ids []int32) ([][]float32, error) {
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	m, err := model.LoadFrozen(d, f, device.TeacherWeights)
	if err != nil {
		return nil, err
	}
	n := len(ids)
	mask := make([]uint8, n)
	for i := range mask {
		mask[i] = 1
	}
	b := model.NewBatch(d, 1, n)
	defer b.Free(d)
	s := d.NewStream()
	b.Load(s, corpus.Batch{Rows: 1, SeqLen: n, Tokens: ids, Targets: make([]int32, n), Mask: mask}, 1)
	x := s.Temp("hidden", device.Activations, d.Info().Activations, n, m.Config.Hidden)
	m.Hidden(s, x, b.Tokens)
	z := s.Temp("logits", device.Logits, tensor.F32, n, m.Config.Vocab)
	m.Logits(s, z, x)
	flat := make([]float32, n*m.Config.Vocab)
	if err := s.Download(flat, z); err != nil {
		return nil, err
	}
	var rows [][]float32
	for i := range n {
		rows = append(rows, flat[i*m.Config.Vocab:(i+1)*m.Config.Vocab])
	}
	return rows, nil
}
