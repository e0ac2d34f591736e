package modelfile_test

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/modelfile"
	"apr/tensor"
)

// resized writes a tied model with so many rows of its vocabulary: those it has, then some of their own. Matrices are in type d.
func resized(t *testing.T, f *modelfile.Files, rows int, d tensor.DType, changes ...change) *modelfile.Files {
	t.Helper()
	c := f.Config
	c.Vocab = rows
	var out []tensor.Source
	for name, shape := range arch.Shapes(c) {
		values, n := changed(t, f, name, changes), int64(0)
		n, _ = tensor.Elements(shape)
		r := rngOf(name)
		for int64(len(values)) < n {
			values = append(values, float32(0.05*r.NormFloat64()))
		}
		raw := make([]byte, n*int64(d.BlockBytes()))
		tensor.Narrow(raw, values[:n], d)
		out = append(out, tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, raw))
	}
	dir := filepath.Join(t.TempDir(), "resized")
	_, err := modelfile.SaveHF(dir, c, nil, out, d, false)
	must(t, err)
	return open(t, dir)
}

// Rows of the vocabulary that one model has besides do not make it another one; training does.
func TestIdentityOfVocabularies(t *testing.T) {
	hf := small(t)
	for _, rows := range []int{hf.Config.Vocab + 64, hf.Config.Vocab + 1, hf.Config.Vocab - 64} {
		same := resized(t, hf, rows, tensor.F32)
		for name, tt := range map[string]struct {
			a, b *modelfile.Files
			want modelfile.Relation
		}{
			"the same":               {hf, same, modelfile.Same},
			"in bf16":                {hf, resized(t, hf, rows, tensor.BF16), modelfile.Same},
			"in blocks":              {hf, variant(t, same, tensor.Q4_K), modelfile.Derived},
			"of blocks":              {variant(t, hf, tensor.Q4_K), same, modelfile.Derived},
			"blocks, expanded":       {hf, variant(t, variant(t, same, tensor.Q8_0), tensor.F32), modelfile.Derived},
			"trained":                {hf, resized(t, hf, rows, tensor.F32, adam(3e-4)), modelfile.Different},
			"trained, then narrowed": {hf, resized(t, hf, rows, tensor.BF16, adam(3e-4)), modelfile.Different},
		} {
			contracttest.Cases(t, 1)
			if k := identify(t, tt.a, tt.b); k.Relation != tt.want || k.Rows != min(rows, hf.Config.Vocab) {
				t.Errorf("%d rows, %s: %s", rows, name, k)
			}
		}
	}
}

// some lets every second row of 256 values, or none of a vector, be changed.
func some(c change) change {
	return func(name string, values []float32) {
		for at := 0; at+256 <= len(values) && len(values) > 1024; at += 512 {
			c(name, values[at:at+256])
		}
	}
}

// A trained model that keeps values of bf16, because rows were never moved, is derived when it is narrowed; what it was trained
// from is not.
func TestIdentityOfNarrowed(t *testing.T) {
	hf := small(t)
	for name, c := range map[string]change{"1e-4": some(adam(1e-4)), "1e-5": some(adam(1e-5)), "all rows": adam(3e-5), "sgd": some(sgd(1e-2))} {
		trained := variant(t, hf, tensor.F32, c)
		for into, narrow := range map[string]*modelfile.Files{
			"bf16": variant(t, trained, tensor.BF16), "f16": variant(t, trained, tensor.F16), "bf16 and f32": variant(t, variant(t, trained, tensor.BF16), tensor.F32),
		} {
			contracttest.Cases(t, 1)
			if k := identify(t, trained, narrow); k.Relation != modelfile.Derived {
				t.Errorf("%s in %s: %s", name, into, k)
			}
		}
		contracttest.Cases(t, 1)
		if k := identify(t, hf, trained); k.Relation != modelfile.Different {
			t.Errorf("%s, from bf16: %s", name, k)
		}
	}
}

// codes rounds groups of n values to the nearest code times the largest magnitude.
func codes(n int, table ...float64) change {
	return func(_ string, values []float32) {
		for lo := 0; lo < len(values); lo += n {
			group, most := values[lo:min(lo+n, len(values))], 0.0
			for _, v := range group {
				most = max(most, math.Abs(float64(v)))
			}
			for i, v := range group {
				best := table[0]
				for _, c := range table {
					if math.Abs(c*most-float64(v)) < math.Abs(best*most-float64(v)) {
						best = c
					}
				}
				group[i] = float32(best * most)
			}
		}
	}
}

// evenCodes are codes of n levels from -1 to 1.
func evenCodes(n int) (table []float64) {
	for i := range n {
		table = append(table, -1+2*float64(i)/float64(n-1))
	}
	return table
}

// nf4 are the codes of QLoRA (arXiv:2305.14314), rounded.
var nf4 = []float64{-1, -.6962, -.5251, -.3949, -.2844, -.1848, -.0911, 0, .0796, .1609, .2461, .3379, .4407, .5626, .7230, 1}

// truncated cuts values to bf16 without rounding; stochastic rounds up or down by chance.
func truncated(_ string, values []float32) {
	for i, v := range values {
		values[i] = math.Float32frombits(math.Float32bits(v) &^ 0xffff)
	}
}

func stochastic(name string, values []float32) {
	r := rngOf(name)
	for i, v := range values {
		values[i] = math.Float32frombits((math.Float32bits(v) + r.Uint32N(1<<16)) &^ 0xffff)
	}
}

// Whoever encoded a copy, by whatever codes: if it is not refused, it is said that it is close, and how close. Models of other
// numbers are not.
func TestLikenessOfEncodings(t *testing.T) {
	hf := small(t)
	wide := variant(t, hf, tensor.F32, sgd(1))
	for name, tt := range map[string]struct {
		of    *modelfile.Files
		codes change
		want  float64 // at most
	}{
		"nf4": {hf, codes(64, nf4...), 0.15}, "nf4 in bf16": {hf, func(name string, v []float32) { codes(64, nf4...)(name, v); truncated(name, v) }, 0.15},
		"uint4 in groups of 128": {hf, codes(128, evenCodes(16)...), 0.2}, "int8 by rows, in bf16": {hf, func(name string, v []float32) {
			codes(hf.Config.Hidden, evenCodes(254)...)(name, v)
			truncated(name, v)
		}, 0.03},
		"uint8 by tensors": {hf, codes(1<<30, evenCodes(256)...), 0.1}, "bf16, truncated": {wide, truncated, 0.01}, "bf16, stochastic": {wide, stochastic, 0.01},
		"int3 in groups of 32": {hf, codes(32, evenCodes(7)...), 0.3},
		"fine-tuned":           {hf, adam(1e-4), 0.05}, "fine-tuned by much": {hf, adam(3e-3), 0.5},
	} {
		contracttest.Cases(t, 1)
		k := identify(t, tt.of, variant(t, tt.of, tensor.F32, tt.codes))
		if c := k.Close; k.Relation != modelfile.Different || c == nil || !(c.Difference > 1e-5 && c.Difference <= tt.want) || !strings.Contains(k.String(), "; close: ") {
			t.Errorf("%s: %s", name, k)
		}
	}
	for name, other := range map[string]change{
		"other numbers": func(name string, v []float32) {
			for i, r := 0, rngOf(name); i < len(v); i++ {
				v[i] = float32(0.05 * r.NormFloat64())
			}
		},
		"one matrix of other numbers": only("up_proj.weight", func(name string, v []float32) {
			for i, r := 0, rngOf(name); i < len(v); i++ {
				v[i] = float32(0.05 * r.NormFloat64())
			}
		}),
		"not a number": only("lm_head.weight", func(_ string, v []float32) { v[0] = float32(math.NaN()) }),
	} {
		contracttest.Cases(t, 1)
		if k := identify(t, hf, variant(t, hf, tensor.F32, other)); k.Relation != modelfile.Different || k.Close != nil {
			t.Errorf("%s: %s", name, k)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	other := *hf // of another arithmetic: only samples are read
	other.Config.Eps *= 2
	if _, err := modelfile.Identify(ctx, hf, &other, func(int64, int64) {}); err == nil {
		t.Error("went on after the end")
	}
}
