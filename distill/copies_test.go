package distill

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/modelfile"
	"apr/tensor"
)

// changedCopy writes the test model with other values, in type d, and returns its folder.
func changedCopy(t *testing.T, d tensor.DType, change func(name string, cols int, values []float32)) string {
	t.Helper()
	return reshapedCopy(t, d, func(*arch.Config) {}, func(name string, shape []int, values []float32) []float32 {
		change(name, shape[len(shape)-1], values)
		return values
	})
}

var layerNumber = regexp.MustCompile(`layers\.\d+\.`)

// reshapedCopy writes the test model with another configuration, and the values that belong to it.
func reshapedCopy(t *testing.T, d tensor.DType, set func(*arch.Config), change func(name string, shape []int, values []float32) []float32) string {
	t.Helper()
	f := openModel(t, "../testdata/models/gosrc")
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	c.Layers = slices.Clone(c.Layers)
	set(&c)
	var out []tensor.Source
	for _, s := range arch.Slots(c) {
		from := s.Name
		if _, ok := f.File.Tensor(from); !ok { // a layer more: the first one's
			from = layerNumber.ReplaceAllString(from, "layers.0.")
		}
		st, ok := f.File.Tensor(from)
		if !ok {
			t.Fatalf("there is no %s", s.Name)
		}
		values, err := f.ReadFloat32(from)
		if err != nil {
			t.Fatal(err)
		}
		values = change(s.Name, st.Shape, values)
		raw := make([]byte, len(values)*d.BlockBytes())
		tensor.Narrow(raw, values, d)
		out = append(out, tensor.BytesSource(tensor.Info{Name: s.Name, DType: d, Shape: s.Shape}, raw))
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if _, err := modelfile.SaveHF(dir, c, tok, out, d, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

// zeroNeurons writes a copy with neurons of zeros besides, and the rest multiplied by factor.
func zeroNeurons(t *testing.T, factor float32) string {
	const more = 8
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		for i := range c.Layers {
			c.Layers[i].FFN.Width += more
		}
	}, func(name string, shape []int, values []float32) []float32 {
		for i := range values {
			values[i] *= factor
		}
		switch {
		case strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
			return append(values, make([]float32, more*shape[1])...)
		case strings.HasSuffix(name, "down_proj.weight"):
			var out []float32
			for row := range slices.Chunk(values, shape[1]) {
				out = append(append(out, row...), make([]float32, more)...)
			}
			return out
		}
		return values
	})
}

// doubledHeads writes a copy in which each head of keys and values is there twice.
func doubledHeads(t *testing.T) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		for i := range c.Layers {
			c.Layers[i].Attn.KVHeads *= 2
		}
	}, func(name string, shape []int, values []float32) []float32 {
		if !strings.Contains(name, "k_proj") && !strings.Contains(name, "v_proj") {
			return values
		}
		heads := openModel(t, "../testdata/models/gosrc").Config.Layers[0].Attn.KVHeads
		var out []float32
		for head := range slices.Chunk(values, len(values)/heads) {
			out = append(append(out, head...), head...)
		}
		return out
	})
}

// permuted puts the neurons of every layer in another order, which changes values and computes the same.
func permuted(name string, cols int, values []float32) {
	old := append([]float32(nil), values...)
	rows := len(values) / cols
	for r := range rows {
		for c := range cols {
			from := r*cols + c
			switch {
			case strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
				from = (rows-1-r)*cols + c
			case strings.HasSuffix(name, "down_proj.weight"):
				from = r*cols + cols - 1 - c
			}
			values[r*cols+c] = old[from]
		}
	}
}

// scaledPairs multiplies what the norm before attention gives by 4, and divides q, k and v by it, which changes values and computes
// the same.
func scaledPairs(name string, _ int, values []float32) {
	factor := float32(1)
	switch {
	case strings.HasSuffix(name, "input_layernorm.weight"):
		factor = 4
	case strings.HasSuffix(name, "q_proj.weight"), strings.HasSuffix(name, "k_proj.weight"), strings.HasSuffix(name, "v_proj.weight"):
		factor = 0.25
	}
	for i := range values {
		values[i] *= factor
	}
}

// permutedHeads puts the heads of keys and values in another order, with the heads of queries that belong to each.
func permutedHeads(t *testing.T) string {
	a := openModel(t, "../testdata/models/gosrc").Config.Layers[0].Attn
	group := a.Heads / a.KVHeads * a.HeadDim
	return changedCopy(t, tensor.F32, func(name string, cols int, values []float32) {
		turn := func(v []float32, block int) { // blocks of rows, or of one row's columns, from the last to the first
			var all []float32
			for at := len(v) - block; at >= 0; at -= block {
				all = append(all, v[at:at+block]...)
			}
			copy(v, all)
		}
		if strings.HasSuffix(name, ".bias") {
			cols = 1
		}
		switch {
		case strings.Contains(name, "q_proj"):
			turn(values, group*cols)
		case strings.Contains(name, "k_proj"), strings.Contains(name, "v_proj"):
			turn(values, a.HeadDim*cols)
		case strings.Contains(name, "o_proj"):
			for row := range slices.Chunk(values, cols) {
				turn(row, group)
			}
		}
	})
}

// moreLayers writes a copy with a layer more, which adds nothing.
func moreLayers(t *testing.T) string {
	last := fmt.Sprintf("layers.%d.", len(openModel(t, "../testdata/models/gosrc").Config.Layers))
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		more := c.Layers[0]
		more.Attn.KVFrom = len(c.Layers)
		c.Layers = append(c.Layers, more)
	}, func(name string, _ []int, values []float32) []float32 {
		if strings.Contains(name, last) && (strings.Contains(name, "o_proj") || strings.Contains(name, "down_proj")) {
			clear(values)
		}
		return values
	})
}

// resizedAndPermuted writes a copy with more rows of the vocabulary, and neurons in another order.
func resizedAndPermuted(t *testing.T) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Vocab += 64 }, func(name string, shape []int, values []float32) []float32 {
		permuted(name, shape[len(shape)-1], values)
		if name == "model.embed_tokens.weight" || name == "lm_head.weight" {
			values = append(values, make([]float32, 64*shape[1])...)
		}
		return values
	})
}

// codes rounds values to 4 bits in groups of so many.
func codes(v []float32, each int) {
	for group := range slices.Chunk(v, each) {
		most := float64(max(slices.Max(group), -slices.Min(group)))
		for i, x := range group {
			group[i] = float32(math.Round(float64(x)/most*7.5) / 7.5 * most)
		}
	}
}

// permutedCodes writes a copy whose neurons are in another order and whose matrices are in codes of 4 bits: its first step has a
// divergence of 0.11 of the teacher's entropy.
func permutedCodes(t *testing.T) string {
	return changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		if permuted(name, cols, v); strings.HasSuffix(name, "proj.weight") || strings.HasSuffix(name, "embed_tokens.weight") || name == "lm_head.weight" {
			codes(v, 256)
		}
	})
}
