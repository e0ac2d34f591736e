//go:build emulate || gpu

package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

const passHidden, passInter, passHeads, passKV, passDim = 512, 768, 4, 2, 64

// passLayers are layers of all three types, with norms of heads or with biases, for positions from `position` on.
func (b *decodeBench) passLayers(layers, position, rows int, norms bool) device.Decode {
	q, kv := passHeads*passDim, passKV*passDim
	of := func(d tensor.DType, rows, cols int) device.Weight { b.blocks = d; return b.matrix(rows, cols) }
	d := device.Decode{Position: position, Eps: 1e-5, Norm: b.norm(passHidden)}
	rope := turning(passDim/2, 1e4, 0)
	types := []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K}
	for i := range layers {
		l := device.DecodeLayer{
			AttnNorm: b.norm(passHidden), FFNNorm: b.norm(passHidden),
			Heads: passHeads, KVHeads: passKV, HeadDim: passDim, Rope: rope, Scale: .2,
			QKV: of(types[i%3], q+2*kv, passHidden), O: of(types[(i+1)%3], passHidden, q),
			GateUp: of(types[i%3], 2*passInter, passHidden), Down: of(types[(i+2)%3], passHidden, passInter),
			Cache: b.tensor(tensor.BF16, position+rows+2, 2*kv, 1, 0), Row: position, Keys: position + 1,
		}
		if norms {
			l.QNorm, l.KNorm = b.norm(passDim), b.norm(passDim)
		} else {
			l.Bias = b.tensor(tensor.F32, 1, q+2*kv, .5, 0)
		}
		d.Layers = append(d.Layers, l)
	}
	return d
}

// TestDecodeRows: each row of a launch of several positions, and what the caches hold afterwards, has the bits that
// launches of one position give. From position 766 on some rows' keys are cut into shares and some rows' are not. Six
// layers are more than those whose exchange is kept apart; with 5 or 16 blocks two of them have the halves of some groups
// of 32 columns of down.
func TestDecodeRows(t *testing.T) {
	findDriver(t)
	t.Setenv("APR_EMULATOR_CC", "9.0")
	for _, c := range []struct {
		blocks                       string // of an emulated device
		layers, rows, kept, position int
		norms                        bool
	}{
		{"5", 3, 2, 2, 37, false}, {"16", 6, 2, 1, 11, true}, {"5", 3, 2, 2, 767, false},
		{"5", 6, 4, 4, 5, true}, {"16", 3, 3, 1, 0, false}, {"6", 3, 4, 4, 37, true}, {"5", 3, 3, 2, 766, false},
	} {
		t.Run(fmt.Sprintf("%d layers, %d of %d from %d, norms %v", c.layers, c.kept, c.rows, c.position, c.norms), func(t *testing.T) {
			t.Setenv("APR_EMULATOR_MULTIPROCESSORS", c.blocks)
			b := &decodeBench{t: t, rng: rand.New(rand.NewPCG(7, 8)), d: open(t, cuda.Options{})}
			defer b.d.Close()
			b.s = b.d.NewStream()
			d := b.passLayers(c.layers, c.position, c.rows, c.norms)
			x := b.tensor(tensor.BF16, c.rows, passHidden, 1, 0)
			y := b.d.Alloc("y", device.Batch, tensor.BF16, c.kept, passHidden)
			one := b.d.Alloc("one", device.Batch, tensor.BF16, c.rows, passHidden)
			before := b.caches(d)
			b.decode(y, x, d)
			got, caches := b.download(y), b.downloads(d)
			for i, l := range d.Layers { // as they were
				b.s.Copy(l.Cache, before[i])
			}
			for r := range c.rows {
				b.decode(one.RowRange(r, r+1), x.RowRange(r, r+1), d)
				d.Position++
				for i := range d.Layers {
					d.Layers[i].Row, d.Layers[i].Keys = d.Layers[i].Row+1, d.Layers[i].Keys+1
				}
			}
			if want := b.download(one)[(c.rows-c.kept)*passHidden:]; !slices.Equal(got, want) {
				for r := range c.kept {
					row := func(v []float32) []float32 { return v[r*passHidden : (r+1)*passHidden] }
					t.Errorf("row %d of the results differs by %.3g", r, distance(row(got), row(want)))
				}
			}
			for i, want := range b.downloads(d) {
				if !slices.Equal(caches[i], want) {
					t.Errorf("the cache of layer %d differs by %.3g", i, distance(caches[i], want))
				}
			}
		})
	}
}

func (b *decodeBench) decode(y, x device.Tensor, d device.Decode) {
	b.t.Helper()
	if err := b.s.(device.Decoder).Decode(y, x, d); err != nil {
		b.t.Fatal(err)
	}
}

// caches are copies of the layers' caches.
func (b *decodeBench) caches(d device.Decode) (all []device.Tensor) {
	for _, l := range d.Layers {
		c := b.d.Alloc("cache", device.Batch, tensor.BF16, l.Cache.Rows, l.Cache.Cols)
		b.s.Copy(c, l.Cache)
		all = append(all, c)
	}
	return all
}

// downloads are the values of the layers' caches.
func (b *decodeBench) downloads(d device.Decode) (all [][]float32) {
	for _, l := range d.Layers {
		all = append(all, b.download(l.Cache))
	}
	return all
}
