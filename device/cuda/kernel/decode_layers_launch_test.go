package kernel

import (
	"testing"
	"unsafe"

	"apr/tensor"
)

// decodeShape returns the layers and the shape of a model whose matrices are of type d.
func decodeShape(layers, hidden, inter, heads, kv, headDim int, d tensor.DType) ([]DecodeLayer, DecodeShape) {
	at := func(rows, cols int) Blocks { return NewBlocks(1<<20, rows, cols, d) }
	norm := Mat{Ptr: 1 << 20, Rows: 1, Cols: hidden, Stride: hidden, Type: tensor.F32}
	all := make([]DecodeLayer, layers)
	for i := range all {
		all[i] = DecodeLayer{
			QKV: [3]Blocks{at(heads*headDim, hidden), at(kv*headDim, hidden), at(kv*headDim, hidden)}, O: at(hidden, heads*headDim),
			GateUp: [2]Blocks{at(inter, hidden), at(inter, hidden)}, Down: at(hidden, inter), Norms: [2]Mat{norm, norm},
			Cache: Mat{Ptr: 1 << 20, Rows: 100, Cols: 2 * kv * headDim, Stride: 2 * kv * headDim, Type: tensor.BF16},
		}
	}
	return all, DecodeShape{Hidden: hidden, Inter: inter, Heads: heads, KVHeads: kv, HeadDim: headDim, Eps: 1e-6, Shared: 227 << 10}
}

// TestDecodeServes: the published shapes fit a block of compute capability 9.0, and what the kernel would read wrongly does not.
func TestDecodeServes(t *testing.T) {
	for name, c := range map[string]struct {
		layers, hidden, inter, heads, kv int
		d                                tensor.DType
	}{
		"0.5B": {24, 896, 4864, 7, 1, tensor.Q8_0}, "1.5B": {28, 1536, 8960, 12, 2, tensor.Q4_K}, "3B": {36, 2048, 11008, 16, 2, tensor.Q6_K},
		"7B": {28, 3584, 18944, 28, 4, tensor.Q6_K}, "14B": {48, 5120, 13824, 40, 8, tensor.Q6_K}, "7B Q8_0": {28, 3584, 18944, 28, 4, tensor.Q8_0},
	} {
		layers, s := decodeShape(c.layers, c.hidden, c.inter, c.heads, c.kv, 128, c.d)
		if err := DecodeServes(layers, s, 132); err != nil {
			t.Errorf("%s is not served: %v", name, err)
		}
	}
	for name, change := range map[string]func(l *DecodeLayer, s *DecodeShape){
		"a matrix in bfloat16":        func(l *DecodeLayer, _ *DecodeShape) { l.O.Type = tensor.BF16 },
		"rows with gaps":              func(l *DecodeLayer, _ *DecodeShape) { l.Down.RowBytes += 16 },
		"too few rows":                func(l *DecodeLayer, _ *DecodeShape) { l.GateUp[1].Rows-- },
		"an address of another place": func(l *DecodeLayer, _ *DecodeShape) { l.QKV[2].Ptr += 8 },
		"a cache in float32":          func(l *DecodeLayer, _ *DecodeShape) { l.Cache.Type = tensor.F32 },
		"a cache of another stride":   func(l *DecodeLayer, _ *DecodeShape) { l.Cache.Stride += 8 },
		"heads of 24 columns":         func(_ *DecodeLayer, s *DecodeShape) { s.HeadDim = 24 },
		"little shared memory":        func(_ *DecodeLayer, s *DecodeShape) { s.Shared = 60 << 10 },
	} {
		layers, s := decodeShape(3, 3584, 18944, 28, 4, 128, tensor.Q4_K)
		change(&layers[1], &s)
		if DecodeServes(layers, s, 132) == nil {
			t.Errorf("%s is served", name)
		}
	}
}

// TestDecodeMemory: the parts of a block's shared memory follow each other, aligned, without overlap, within what there is.
func TestDecodeMemory(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0} {
		for _, blocks := range []int{78, 114, 132} {
			layers, s := decodeShape(28, 3584, 18944, 28, 4, 128, d)
			p, ok := shapeLayers(layers, s, blocks)
			if !ok {
				t.Fatalf("%v on %d multiprocessors does not fit", d, blocks)
			}
			at := []int{0, p.ring, p.ring + p.slots*layersWarps*p.pitch, p.sums, p.own, p.bias, p.spans, p.tiles, p.layers, p.shared}
			if p.zeros != at[2] || p.sums-p.zeros < layersZeros || p.shared > s.Shared || p.shared-p.layers != 28*int(unsafe.Sizeof(decodeLayer{})) {
				t.Errorf("%v on %d multiprocessors: %+v", d, blocks, p)
			}
			for i := 1; i < len(at); i++ {
				if at[i] <= at[i-1] || at[i]%16 != 0 {
					t.Errorf("%v on %d multiprocessors: part %d is at %d, the one before at %d", d, blocks, i, at[i], at[i-1])
				}
			}
			if least := TileRows * int(d.RowBytes(256)); p.pitch < least || p.pitch%128 != 0 || p.ring%128 != 0 {
				t.Errorf("%v: rings from %d on have slots of %d bytes for spans of %d", d, p.ring, p.pitch, least)
			}
		}
	}
}
