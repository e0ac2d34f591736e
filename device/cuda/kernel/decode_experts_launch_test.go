package kernel

import (
	"strings"
	"testing"

	"apr/tensor"
)

// expertsModel returns layers of a model of experts, whose matrices are of type d.
func expertsModel(count int, d tensor.DType, s ExpertsShape) ([]DecodeLayer, ExpertsShape) {
	s.Eps, s.Residual, s.Renorm, s.Shared = 1e-6, 1, true, 227<<10
	vector := func(cols int) Mat { return Mat{Ptr: 1 << 20, Rows: 1, Cols: cols, Stride: cols, Type: tensor.F32} }
	var all [layersMatrices]Blocks
	for i, m := range s.shapes() {
		all[i] = NewBlocks(1<<20, m[0], m[1], d)
	}
	kv := 2 * s.KVHeads * s.HeadDim
	l := DecodeLayer{
		QKV: [3]Blocks(all[:3]), O: all[3], GateUp: [2]Blocks(all[4:6]), Down: all[6],
		Norms: [2]Mat{vector(s.Hidden), vector(s.Hidden)}, QNorm: vector(s.HeadDim), KNorm: vector(s.HeadDim),
		Cache:  Mat{Ptr: 1 << 20, Rows: 2000, Cols: kv, Stride: kv, Type: tensor.BF16},
		Router: Mat{Ptr: 1 << 20, Rows: s.Experts, Cols: s.Hidden, Stride: s.Hidden, Type: tensor.BF16},
	}
	layers := make([]DecodeLayer, count)
	for i := range layers {
		layers[i] = l
	}
	return layers, s
}

// qwen3 is the shape of a Qwen3 of 128 experts of which 8 are chosen.
func qwen3(hidden, heads, inter int) ExpertsShape {
	d := DecodeShape{Hidden: hidden, Inter: inter, Heads: heads, KVHeads: 4, HeadDim: 128}
	return ExpertsShape{DecodeShape: d, Experts: 128, Active: 8}
}

// TestDecodeExpertsServes: the published shapes fit a block of compute capability 9.0, with several spans of a warp on
// their way, and what the kernel would read wrongly does not.
func TestDecodeExpertsServes(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0} {
		for _, blocks := range []int{114, 132} {
			for name, c := range map[string]struct {
				count int
				shape ExpertsShape
			}{"Qwen3-30B-A3B": {48, qwen3(2048, 32, 768)}, "Qwen3-235B-A22B": {94, qwen3(4096, 64, 1536)}} {
				layers, s := expertsModel(c.count, d, c.shape)
				if err := DecodeExpertsServes(layers, s, blocks); err != nil {
					t.Errorf("%s in %v is not served: %v", name, d, err)
				}
				p, _ := shapeExperts(layers, s, blocks)
				own := p.own + 4*TileRows*ceil(s.Hidden/TileRows, blocks)
				if row := p.bias - 2*2*s.Hidden; row < own || row%16 != 0 || p.slots < 2 {
					t.Errorf("%s in %v: x of the router at %d in %+v", name, d, row, p)
				}
				if p.shared > s.Shared-decodeExpertsStatic {
					t.Errorf("%s in %v: %d bytes", name, d, p.shared)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		change func(l *DecodeLayer, s *ExpertsShape)
		want   string
	}{
		"a matrix in bfloat16":     {func(l *DecodeLayer, _ *ExpertsShape) { l.Down.Type = tensor.BF16 }, "matrix 6"},
		"one expert less":          {func(l *DecodeLayer, _ *ExpertsShape) { l.GateUp[1].Rows -= 768 }, "matrix 5"},
		"a router in float32":      {func(l *DecodeLayer, _ *ExpertsShape) { l.Router.Type = tensor.F32 }, "the router"},
		"a router of other rows":   {func(l *DecodeLayer, _ *ExpertsShape) { l.Router.Rows-- }, "router of layer 1"},
		"no router":                {func(l *DecodeLayer, _ *ExpertsShape) { l.Router = Mat{} }, "router of layer 1"},
		"a router at an odd place": {func(l *DecodeLayer, _ *ExpertsShape) { l.Router.Ptr += 2 }, "router of layer 1"},
		"130 experts":              {func(_ *DecodeLayer, s *ExpertsShape) { s.Experts = 130 }, "of 130 experts"},
		"512 experts":              {func(_ *DecodeLayer, s *ExpertsShape) { s.Experts = 512 }, "of 512 experts"},
		"33 chosen":                {func(_ *DecodeLayer, s *ExpertsShape) { s.Active = 33 }, "33 of 128 experts"},
		"experts of 800 values":    {func(_ *DecodeLayer, s *ExpertsShape) { s.Inter = 800 }, "800 values"},
		"heads of 96 columns":      {func(_ *DecodeLayer, s *ExpertsShape) { s.HeadDim = 96 }, "96 columns"},
		"little shared memory":     {func(_ *DecodeLayer, s *ExpertsShape) { s.Shared = 60 << 10 }, "shared memory"},
	} {
		layers, s := expertsModel(3, tensor.Q4_K, qwen3(2048, 32, 768))
		c.change(&layers[1], &s)
		if err := DecodeExpertsServes(layers, s, 132); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if DecodeExpertsServes(nil, qwen3(2048, 32, 768), 132) == nil {
		t.Error("no layers are served")
	}
}
