package distill

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
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
	return reshapedCopyOf(t, "../testdata/models/gosrc", d, set, change)
}

func reshapedCopyOf(t *testing.T, path string, d tensor.DType, set func(*arch.Config),
	change func(name string, shape []int, values []float32) []float32) string {
	t.Helper()
	f := openModel(t, path)
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
	return widened(t, 8, func(_ string, _ int, values []float32) {
		for i := range values {
			values[i] *= factor
		}
	})
}

// widened writes a copy with more neurons of zeros, the other values changed.
func widened(t *testing.T, more int, change func(name string, cols int, values []float32)) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		for i := range c.Layers {
			c.Layers[i].FFN.Width += more
		}
	}, func(name string, shape []int, values []float32) []float32 {
		change(name, shape[len(shape)-1], values)
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

// scaledPairs multiplies what the norm before attention gives by 4, and divides q, k and v by it, which changes values
// and computes the same.
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

// moreHeads writes a copy, byte for byte, that claims twice as many heads of half the size: the same tensors.
func moreHeads(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../testdata/models/gosrc")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := openModel(t, dir).Config.Layers[0].Attn
	for key, n := range map[string]int{"num_attention_heads": c.Heads, "num_key_value_heads": c.KVHeads} {
		b = bytes.Replace(b, fmt.Appendf(nil, "%q: %d", key, n), fmt.Appendf(nil, "%q: %d", key, 2*n), 1)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// moreLayers writes a copy with a layer more, which adds nothing.
func moreLayers(t *testing.T) string { return withLayer(t, func(string, int, []float32) {}) }

// withLayer writes a copy with a layer more, which adds nothing, the other values changed.
func withLayer(t *testing.T, change func(name string, cols int, values []float32)) string {
	last := fmt.Sprintf("layers.%d.", len(openModel(t, "../testdata/models/gosrc").Config.Layers))
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		more := c.Layers[0]
		more.Attn.KVFrom = len(c.Layers)
		c.Layers = append(c.Layers, more)
	}, func(name string, shape []int, values []float32) []float32 {
		change(name, shape[len(shape)-1], values)
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

// rowCodes rounds matrices to the 15 even steps of symmetric 4 bits, one scale for a row.
func rowCodes(name string, cols int, v []float32) {
	if cols == len(v) || !strings.HasSuffix(name, "proj.weight") && !strings.HasSuffix(name, "embed_tokens.weight") && name != "lm_head.weight" {
		return
	}
	for row := range slices.Chunk(v, cols) {
		most := float64(max(slices.Max(row), -slices.Min(row)))
		for i, x := range row {
			row[i] = float32(math.Round(float64(x)/most*7) / 7 * most)
		}
	}
}

// groupCodes rounds the projections to 4 bits with a zero, in groups of 128 of a row.
func groupCodes(name string, _ int, v []float32) {
	if !strings.HasSuffix(name, "proj.weight") {
		return
	}
	for group := range slices.Chunk(v, 128) {
		low, high := float64(min(slices.Min(group), 0)), float64(max(slices.Max(group), 0))
		step := (high - low) / 15
		if step == 0 {
			continue
		}
		zero := math.Round(-low / step)
		for i, x := range group {
			group[i] = float32((min(max(math.Round(float64(x)/step)+zero, 0), 15) - zero) * step)
		}
	}
}

// scaledMLP writes a copy whose up is 4 times the teacher's and whose down a quarter of it, in codes of 4 bits, the
// tables too.
func scaledMLP(t *testing.T) string {
	return changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		factor := float32(1)
		switch {
		case strings.HasSuffix(name, "up_proj.weight"):
			factor = 4
		case strings.HasSuffix(name, "down_proj.weight"):
			factor = 0.25
		}
		for i := range v {
			v[i] *= factor
		}
		rowCodes(name, cols, v)
	})
}

// foldedScales writes a copy as AWQ does: each column of q, k, v, gate and up times a number that the norm before is
// divided by, in codes of 4 bits.
func foldedScales(t *testing.T) string {
	scale := func(column int) float32 {
		return float32(math.Exp(0.6 * 1.7 * math.Sin(float64(7*column*column+column))))
	}
	return changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		for i := range v {
			switch {
			case strings.HasSuffix(name, "layernorm.weight"):
				v[i] /= scale(i)
			case strings.HasSuffix(name, "q_proj.weight"), strings.HasSuffix(name, "k_proj.weight"), strings.HasSuffix(name, "v_proj.weight"),
				strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
				v[i] *= scale(i % cols)
			}
		}
		groupCodes(name, cols, v)
	})
}

// paddedCodes writes a copy whose MLP is wider by 256 neurons of zeros, in codes of 4 bits.
func paddedCodes(t *testing.T) string {
	return widened(t, 256, func(name string, cols int, v []float32) { groupCodes(name, cols, v) })
}

// turnedColumns writes a copy whose hidden columns are in another order, in codes of 4 bits: no row of a table is the
// teacher's.
func turnedColumns(t *testing.T) string {
	return changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		rowCodes(name, cols, v)
		turned(name, cols, v)
	})
}

// louder writes a copy that is changed, its last norm and so its logits multiplied by a number.
func louder(t *testing.T, change func(name string, cols int, v []float32), by float32) string {
	return changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		if change(name, cols, v); name == "model.norm.weight" {
			for i := range v {
				v[i] *= by
			}
		}
	})
}

// smallLayerInCodes writes a copy with a layer more, which adds a thousandth of what the first does, all in codes of 4
// bits, one scale for a row.
func smallLayerInCodes(t *testing.T) string {
	last := fmt.Sprintf("layers.%d.", len(openModel(t, "../testdata/models/gosrc").Config.Layers))
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) {
		more := c.Layers[0]
		more.Attn.KVFrom = len(c.Layers)
		c.Layers = append(c.Layers, more)
	}, func(name string, shape []int, v []float32) []float32 {
		if rowCodes(name, shape[len(shape)-1], v); strings.Contains(name, last) && (strings.Contains(name, "o_proj") || strings.Contains(name, "down_proj")) {
			for i := range v {
				v[i] *= 1e-3
			}
		}
		return v
	})
}

// idleLayer writes a copy with a layer more, which adds nothing and has the values of no other layer.
func idleLayer(t *testing.T) string {
	last := fmt.Sprintf("layers.%d.", len(openModel(t, "../testdata/models/gosrc").Config.Layers))
	return withLayer(t, func(name string, _ int, v []float32) {
		if strings.Contains(name, last) && !strings.HasSuffix(name, "norm.weight") {
			slices.Reverse(v)
		}
	})
}

// turned puts hidden columns in another order, which changes values and computes the same.
func turned(name string, cols int, v []float32) {
	switch rows := len(v) / cols; {
	case strings.HasSuffix(name, "norm.weight"):
		slices.Reverse(v)
	case strings.HasSuffix(name, "o_proj.weight"), strings.HasSuffix(name, "down_proj.weight"):
		for i := range rows / 2 {
			for c := range cols {
				a, b := i*cols+c, (rows-1-i)*cols+c
				v[a], v[b] = v[b], v[a]
			}
		}
	case strings.HasSuffix(name, ".weight"):
		for row := range slices.Chunk(v, cols) {
			slices.Reverse(row)
		}
	}
}

// noisy adds to every matrix of a layer normal numbers, so many times as large as its own are on average.
func noisy(amount float64) func(name string, cols int, v []float32) {
	return func(name string, cols int, v []float32) {
		if !strings.HasSuffix(name, "proj.weight") {
			return
		}
		var squares float64
		for _, x := range v {
			squares += float64(x) * float64(x)
		}
		rng := rand.New(rand.NewPCG(uint64(len(name)), uint64(len(v))))
		for i := range v {
			v[i] += float32(amount * math.Sqrt(squares/float64(len(v))) * rng.NormFloat64())
		}
	}
}

// both makes one change and then another.
func both(first, then func(name string, cols int, v []float32)) func(name string, cols int, v []float32) {
	return func(name string, cols int, v []float32) { first(name, cols, v); then(name, cols, v) }
}

// untrained writes a model of the same shapes whose matrices are those of a new one.
func untrained(t *testing.T, seed uint64) string {
	return changedCopy(t, tensor.F32, func(name string, cols int, v []float32) {
		of := crc32.ChecksumIEEE([]byte(name)) // no two matrices are alike
		rng := rand.New(rand.NewPCG(seed, uint64(of)))
		for i := range v {
			if cols < len(v) {
				v[i] = float32(0.02 * rng.NormFloat64())
			}
		}
	})
}

// moreLayersInCodes writes a copy with a layer more, which adds nothing, in codes of 4 bits.
func moreLayersInCodes(t *testing.T) string { return withLayer(t, groupCodes) }

// strangerWithTable writes a model with the teacher's embedding, and other numbers between it and the head.
func strangerWithTable(t *testing.T) string {
	return changedCopy(t, tensor.F32, func(name string, _ int, v []float32) {
		if strings.HasSuffix(name, "proj.weight") {
			slices.Reverse(v)
		}
	})
}

// permutedCodes writes a copy whose neurons are in another order and whose matrices are in codes of 4 bits: its first
// step has a divergence of 0.11 of the teacher's entropy.
func permutedCodes(t *testing.T) string { return changedCopy(t, tensor.F32, permuteAndCode) }

func permuteAndCode(name string, cols int, values []float32) {
	if permuted(name, cols, values); strings.HasSuffix(name, "proj.weight") || strings.HasSuffix(name, "embed_tokens.weight") || name == "lm_head.weight" {
		codes(values, 256)
	}
}
