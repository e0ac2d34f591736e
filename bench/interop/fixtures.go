package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"apr/convert"
	"apr/format/gguf"
	"apr/modelfile"
)

// fixture is a file of llama.cpp's quantizer, with what llama.cpp makes of it; kept in testdata/gguf for tests without it.
type fixture struct {
	File    string            `json:"file"`
	SHA256  string            `json:"sha256"` // of the file, expanded by zstd
	Prompt  []int             `json:"prompt"`
	Tokens  []int             `json:"tokens"`  // that llama.cpp appends
	Logs    [][]float64       `json:"logs"`    // log-probabilities at each of Tokens, of every tenth id
	Tensors map[string]string `json:"tensors"` // SHA-256 of the float32 that llama.cpp expands each quantised tensor to
}

const (
	everyID       = 10
	fixtureTokens = 4
)

// makeFixtures makes the files of testdata/gguf in folder out.
func (p peer) makeFixtures(ctx context.Context, dir, out string) error {
	var list []fixture
	for _, m := range randoms {
		if m.Fixture == "" {
			continue
		}
		m.Thin = true
		f, err := p.fixture(ctx, m, dir, out)
		if err != nil {
			return err
		}
		list = append(list, f)
	}
	text, err := json.MarshalIndent(list, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "fixtures.json"), append(text, '\n'), 0o644)
}

func (p peer) fixture(ctx context.Context, m random, dir, out string) (f fixture, err error) {
	folder := filepath.Join(dir, "thin_"+m.FolderName())
	file := folder + ".gguf"
	if err := m.Folder(".", folder); err != nil {
		return f, err
	}
	if err := write(ctx, folder, file, convert.Options{Scheme: convert.F32, Force: true}); err != nil {
		return f, err
	}
	blocks, expanded, err := p.blocks(ctx, file, m.Fixture)
	if err != nil {
		return f, err
	}
	data, err := os.ReadFile(blocks)
	if err != nil {
		return f, err
	}
	f.File = m.Name + "-" + m.Fixture + ".gguf.zst"
	sum := sha256.Sum256(data)
	f.SHA256 = hex.EncodeToString(sum[:])
	if f.Tensors, err = hashes(blocks, expanded); err != nil {
		return f, err
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return f, err
	}
	if err := os.WriteFile(filepath.Join(out, f.File), w.EncodeAll(data, nil), 0o644); err != nil {
		return f, err
	}
	_, c, err := m.Config()
	if err != nil {
		return f, err
	}
	err = p.continued(ctx, &f, expanded, c.Vocab)
	return f, err
}

// continued adds a prompt and what llama.cpp appends to it.
func (p peer) continued(ctx context.Context, f *fixture, expanded string, rows int) error {
	s, err := p.serve(ctx, expanded, length)
	if err != nil {
		return err
	}
	defer s.stop()
	if f.Prompt, err = s.tokenize(ctx, prompts[0], true); err != nil {
		return err
	}
	made, err := s.greedy(ctx, f.Prompt, fixtureTokens, rows)
	if err != nil {
		return err
	}
	for _, t := range made.tokens {
		f.Tokens = append(f.Tokens, t.id)
		var logs []float64
		for id := 0; id < len(t.logs); id += everyID {
			logs = append(logs, math.Round(t.logs[id]*1e6)/1e6)
		}
		f.Logs = append(f.Logs, logs)
	}
	return nil
}

// hashes returns SHA-256 of the values in expanded of each tensor that has blocks in the other file.
func hashes(blocks, expanded string) (map[string]string, error) {
	f, err := gguf.Open(blocks)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	g, err := gguf.Open(expanded)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	sums := map[string]string{}
	for _, t := range f.Tensors() {
		if !t.DType.IsQuantized() {
			continue
		}
		other, _ := g.Tensor(t.Name)
		v, err := modelfile.ReadFloat32(expanded, other)
		if err != nil {
			return nil, err
		}
		sums[t.Name] = hashOf(v)
	}
	return sums, nil
}

// hashOf returns the first half of SHA-256 of little-endian float32.
func hashOf(v []float32) string {
	raw := make([]byte, 4*len(v))
	if _, err := binary.Encode(raw, binary.LittleEndian, v); err != nil {
		panic(err) // a slice of float32 of the right length
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}
