package selfcheck

import (
	"fmt"
	"slices"
	"strings"

	"apr/arch"
	"apr/device"
	"apr/model"
	"apr/tensor"
)

const (
	maxProducts = 4 << 30 // products of two numbers that the host computes: about a second on two cores
	excerptRows = 4096    // of the vocabulary, in an excerpt
)

// excerpt is a model with some of its layers and the first rows of its vocabulary.
type excerpt struct {
	model.Weights
	config arch.Config
	layers []int // their numbers in the model
	rows   int   // of the embedding and the head; 0: all
}

// newExcerpt chooses what of a model is compared: all of it, if that is little enough.
func newExcerpt(w model.Weights) (excerpt, error) {
	c := w.Arch()
	x := excerpt{Weights: w, config: c}
	var all int64
	sizes, kinds := make([]int64, len(c.Layers)), make([]string, len(c.Layers))
	shared := c.PLE.Width > 0 // their table is of all layers
	for i, l := range c.Layers {
		x.layers = append(x.layers, i)
		shared = shared || !l.Linear() && l.Attn.KVFrom != i
		l.Attn.KVFrom = 0
		kinds[i] = fmt.Sprintf("%+v", l)
	}
	for _, s := range arch.Slots(c) {
		if len(s.Shape) < 2 || s.Fixed {
			continue
		}
		src, err := w.Source(s.Name)
		if err != nil {
			return x, err
		}
		if s.Layer >= 0 {
			sizes[s.Layer] += s.Elements()
			kinds[s.Layer] += " " + src.Info().DType.String()
		}
		if s.Role != arch.Embedding || c.Tied {
			all += s.Elements()
		}
	}
	const positions = AgreePrompt + AgreeSteps
	if positions*all <= maxProducts || shared {
		return x, nil
	}
	if c.Vocab > excerptRows {
		x.rows = excerptRows
		x.config.Vocab = x.rows
	}
	room := maxProducts/positions - int64(x.config.Vocab)*int64(c.Hidden)
	x.layers = x.layers[:0]
	for i := range c.Layers {
		if slices.Index(kinds, kinds[i]) == i {
			x.layers = append(x.layers, i)
			room -= sizes[i]
		}
	}
	for i := range c.Layers {
		if !slices.Contains(x.layers, i) && room >= sizes[i] {
			x.layers = append(x.layers, i)
			room -= sizes[i]
		}
	}
	slices.Sort(x.layers)
	x.config.Layers = nil
	for at, i := range x.layers {
		l := c.Layers[i]
		l.Attn.KVFrom = at
		x.config.Layers = append(x.config.Layers, l)
	}
	return x, nil
}

// Arch describes the excerpt.
func (x excerpt) Arch() arch.Config { return x.config }

// name returns what the model calls a slot of the excerpt.
func (x excerpt) name(slot string) string {
	rest, ok := strings.CutPrefix(slot, "model.layers.")
	if !ok {
		return slot
	}
	var i int
	if _, err := fmt.Sscanf(rest, "%d.", &i); err != nil || i >= len(x.layers) {
		return slot
	}
	_, rest, _ = strings.Cut(rest, ".")
	return fmt.Sprintf("model.layers.%d.%s", x.layers[i], rest)
}

// Source returns the rows of a matrix, of the vocabulary the first ones.
func (x excerpt) Source(name string) (device.Source, error) {
	s, err := x.Weights.Source(x.name(name))
	if err != nil || x.rows == 0 || name != "model.embed_tokens.weight" && name != "lm_head.weight" {
		return s, err
	}
	info := s.Info()
	rows := info.Rows()
	if rows <= x.rows || info.Size%int64(rows) != 0 {
		return s, nil
	}
	info.Size = info.Size / int64(rows) * int64(x.rows)
	info.Shape = []int{x.rows, info.Cols()}
	return firstRows{s, info}, nil
}

// ReadFloat32 returns the values of a vector.
func (x excerpt) ReadFloat32(name string) ([]float32, error) {
	return x.Weights.ReadFloat32(x.name(name))
}

// firstRows is a source that ends early.
type firstRows struct {
	device.Source
	info tensor.Info
}

// Info describes the rows that are left.
func (f firstRows) Info() tensor.Info { return f.info }
