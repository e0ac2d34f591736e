package kernel

import (
	"strings"
	"testing"
	"unsafe"

	"apr/tensor"
)

// generalShape is a shape of layers, and how many of them a model has.
type generalShape struct{ count, heads, kv, headDim, inter, extra int }

// generalModel returns layers of these shapes in turn, whose matrices are of type d.
func generalModel(hidden int, d tensor.DType, shapes ...generalShape) ([]GeneralLayer, GeneralShape) {
	at := func(rows, cols int) Blocks { return NewBlocks(1<<20, rows, cols, d) }
	norm := Mat{Ptr: 1 << 20, Rows: 1, Cols: hidden, Stride: hidden, Type: tensor.F32}
	var all []GeneralLayer
	for _, s := range shapes {
		q, kv := s.heads*s.headDim, s.kv*s.headDim
		l := GeneralLayer{Heads: s.heads, KVHeads: s.kv, HeadDim: s.headDim, Inter: s.inter, Residual: 1, OutScale: 1}
		l.QKV, l.O = [3]Blocks{at(q, hidden), at(kv, hidden), at(kv, hidden)}, at(hidden, q)
		l.GateUp, l.Down = [2]Blocks{at(s.inter, hidden), at(s.inter, hidden)}, at(hidden, s.inter)
		if s.extra > 0 {
			l.PerLayer = [2]Blocks{at(s.extra, hidden), at(hidden, s.extra)}
			l.Input, l.InputNorm = Mat{Ptr: 1 << 20, Rows: 1, Cols: s.extra, Stride: s.extra, Type: tensor.BF16}, norm
		}
		l.Norms, l.Post = [2]Mat{norm, norm}, [2]Mat{norm, norm}
		l.Cache, l.Row, l.Keys = Mat{Ptr: 1 << 20, Rows: 2000, Cols: 2 * kv, Stride: 2 * kv, Type: tensor.BF16}, 1000, 1001
		for range s.count {
			all = append(all, l)
		}
	}
	return all, GeneralShape{Hidden: hidden, Eps: 1e-6, Shared: 227 << 10}
}

// generalModels are published shapes.
func generalModels(d tensor.DType) map[string]func() ([]GeneralLayer, GeneralShape) {
	of := func(hidden int, shapes ...generalShape) func() ([]GeneralLayer, GeneralShape) {
		return func() ([]GeneralLayer, GeneralShape) { return generalModel(hidden, d, shapes...) }
	}
	return map[string]func() ([]GeneralLayer, GeneralShape){
		"Gemma 2 2B": of(2304, generalShape{26, 8, 4, 256, 9216, 0}), "Gemma 2 9B": of(3584, generalShape{42, 16, 8, 256, 14336, 0}),
		"Gemma 2 27B": of(4608, generalShape{46, 32, 16, 128, 36864, 0}), "Gemma 3 4B": of(2560, generalShape{34, 8, 4, 256, 10240, 0}),
		"Gemma 3 12B": of(3840, generalShape{48, 16, 8, 256, 15360, 0}), "Gemma 3 27B": of(5376, generalShape{62, 32, 16, 128, 21504, 0}),
		"Gemma 4 E2B": of(1536, generalShape{12, 8, 1, 256, 6144, 256}, generalShape{3, 8, 1, 512, 6144, 256}, generalShape{16, 8, 1, 256, 12288, 256}, generalShape{4, 8, 1, 512, 12288, 256}),
		"Gemma 4 31B": of(5376, generalShape{50, 32, 16, 256, 21504, 0}, generalShape{10, 32, 4, 512, 21504, 0}),
		"OLMo 2 7B":   of(4096, generalShape{32, 32, 32, 128, 11008, 0}), "OLMo 2 13B": of(5120, generalShape{40, 40, 40, 128, 13824, 0}),
	}
}

// TestGeneralServes: the published shapes fit a block of compute capability 9.0, and what the kernel would read wrongly does not.
func TestGeneralServes(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K} {
		for name, model := range generalModels(d) {
			layers, s := model()
			if err := GeneralServes(layers, s, 132); err != nil {
				t.Errorf("%s in %v is not served: %v", name, d, err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(l *GeneralLayer, s *GeneralShape)
		want   string
	}{
		"a matrix in bfloat16":  {func(l *GeneralLayer, _ *GeneralShape) { l.O.Type = tensor.BF16 }, "matrix 3"},
		"k where there is none": {func(l *GeneralLayer, _ *GeneralShape) { l.Shared = true }, "matrix 1"},
		"v where there is none": {func(l *GeneralLayer, _ *GeneralShape) { l.VIsK = true }, "matrix 2"},
		"no projection behind":  {func(l *GeneralLayer, _ *GeneralShape) { l.PerLayer[1] = Blocks{} }, "matrix 8"},
		"heads of 320 columns":  {func(l *GeneralLayer, _ *GeneralShape) { l.HeadDim = 320 }, "320 columns"},
		"heads of 24 columns":   {func(l *GeneralLayer, _ *GeneralShape) { l.HeadDim = 24 }, "24 columns"},
		"norms of a row and of a head": {func(l *GeneralLayer, _ *GeneralShape) {
			l.QNorm, l.KNorm = Mat{Ptr: 16, Cols: 2048}, Mat{Ptr: 16, Cols: 256}
		}, "over all heads"},
		"a negative scale with a cap": {func(l *GeneralLayer, _ *GeneralShape) { l.Scale, l.Cap = -1, 5 }, "soft-cap"},
		"a norm at an odd place":      {func(l *GeneralLayer, _ *GeneralShape) { l.Post[1].Ptr += 4 }, "norms or cache"},
		"a cache in float32":          {func(l *GeneralLayer, _ *GeneralShape) { l.Cache.Type = tensor.F32 }, "cache"},
		"rows of 8200 columns":        {func(_ *GeneralLayer, s *GeneralShape) { s.Hidden = 8224 }, "8192 at most"},
		"little shared memory":        {func(_ *GeneralLayer, s *GeneralShape) { s.Shared = 60 << 10 }, "shared memory"},
	} {
		layers, s := generalModel(2560, tensor.Q4_K, generalShape{3, 8, 4, 256, 10240, 256})
		c.change(&layers[1], &s)
		if err := GeneralServes(layers, s, 132); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var shapes []generalShape
	for i := range generalKinds + 1 {
		shapes = append(shapes, generalShape{1, 8, 4, 128, 512 * (i + 1), 0})
	}
	layers, s := generalModel(2560, tensor.Q4_K, shapes...)
	if err := GeneralServes(layers, s, 132); err == nil || !strings.Contains(err.Error(), "5 shapes") {
		t.Errorf("layers of five shapes: %v", err)
	}
	if GeneralServes(nil, s, 132) == nil {
		t.Error("no layers are served")
	}
}

// TestGeneralMemory: the parts of a block's shared memory follow each other, aligned, without overlap, within what there is.
func TestGeneralMemory(t *testing.T) {
	for name, model := range generalModels(tensor.Q6_K) {
		layers, s := model()
		for _, blocks := range []int{114, 132} {
			p, ok := shapeGeneral(layers, s, blocks)
			if !ok {
				t.Fatalf("%s on %d multiprocessors does not fit", name, blocks)
			}
			at := []int{0, p.ring, p.ring + p.slots*layersWarps*p.pitch, p.sums, p.own, p.bias, p.spans, p.tiles, p.layers, p.shared}
			kinds, _ := kindsOf(layers)
			least := []int{0, 0, layersZeros, 4 * TileRows * (layersWarps + p.blockTiles), 2 * s.Hidden, 0, 8 * p.warpSpans * layersWarps * len(kinds),
				2 * generalProducts * p.blockTiles * len(kinds), len(layers) * int(unsafe.Sizeof(layerMatrices{}))}
			for i := 1; i < len(at); i++ {
				if at[i]-at[i-1] < least[i-1] || at[i]%16 != 0 {
					t.Errorf("%s on %d multiprocessors: part %d is at %d, the one before at %d", name, blocks, i, at[i], at[i-1])
				}
			}
			if p.zeros != at[2] || p.shared > s.Shared-generalStatic || p.pitch%128 != 0 || p.ring%128 != 0 {
				t.Errorf("%s on %d multiprocessors: %+v", name, blocks, p)
			}
		}
	}
}

// TestGeneralTable: each layer has the number of its shape, and matrices that are not there have no address.
func TestGeneralTable(t *testing.T) {
	layers, _ := generalModel(1536, tensor.Q4_K, generalShape{2, 8, 1, 256, 6144, 256}, generalShape{1, 8, 1, 512, 6144, 0}, generalShape{1, 8, 1, 256, 6144, 256})
	layers[3].Shared, layers[3].QKV[1], layers[3].QKV[2] = true, Blocks{}, Blocks{}
	dst := make([]byte, GeneralTableBytes(len(layers)))
	for i := range dst {
		dst[i] = 0xff
	}
	GeneralTable(dst, layers)
	_, at, records, _ := generalPlaces(len(layers))
	matrices := unsafe.Slice((*layerMatrices)(unsafe.Pointer(&dst[at])), len(layers))
	all := unsafe.Slice((*generalLayer)(unsafe.Pointer(&dst[records])), len(layers))
	for i, of := range []uint16{0, 0, 1, 2} {
		if matrices[i].of != of {
			t.Errorf("layer %d has shape %d, want %d", i, matrices[i].of, of)
		}
	}
	if matrices[0].w[8] == 0 || matrices[2].w[7] != 0 || matrices[3].w[1] != 0 || matrices[3].w[2] != 0 || matrices[3].w[0] == 0 {
		t.Errorf("matrices %+v", matrices)
	}
	if all[3].flags != generalShared || all[0].flags != 0 || all[0].splits != 2 || all[0].keys != 1001 || dst[0] != 0 {
		t.Errorf("layers %+v", all)
	}
}
