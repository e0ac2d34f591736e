package device_test

import (
	"math"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestPairs counts the pairs that Pairs has a formula for.
func TestPairs(t *testing.T) {
	for _, a := range []device.Attn{{}, {QLen: 1}, {QLen: 7}, {QLen: 7, QOffset: 4}, {QLen: 1, QOffset: 20}} {
		for _, a.Window = range []int{0, 1, 2, 6, 7, 8, 11, 12, 40} {
			want := int64(0)
			for i := range a.QLen {
				seen := a.QOffset + i + 1
				if a.Window > 0 {
					seen = min(seen, a.Window)
				}
				want += int64(seen)
			}
			if got := a.Pairs(); got != want {
				t.Errorf("%d queries from %d, window %d: %d pairs, want %d", a.QLen, a.QOffset, a.Window, got, want)
			}
		}
	}
}

func TestFrequenciesKey(t *testing.T) {
	f := device.Frequencies{Inv: []float64{1, .5}}
	for name, g := range map[string]device.Frequencies{
		"another frequency": {Inv: []float64{1, .25}}, "a factor": {Inv: []float64{1, .5}, Factor: 1.1}, "fewer pairs": {Inv: []float64{1}},
	} {
		if f.Key() == g.Key() {
			t.Errorf("%s has the same key", name)
		}
	}
	if g := (device.Frequencies{Inv: []float64{1, .5}, Factor: 1}); f.Key() != g.Key() {
		t.Error("no factor and a factor of 1 have two keys")
	}
}

func TestQScale(t *testing.T) {
	r := device.Rotary{QBeta: .5, QLength: 4}
	for p, want := range map[int]float64{0: 1, 3: 1, 4: 1 + .5*math.Log(2), 7: 1 + .5*math.Log(2), 8: 1 + .5*math.Log(3)} {
		if got := r.QScale(p); got != want {
			t.Errorf("position %d: %g, want %g", p, got, want)
		}
	}
}

// decoding returns the description of a layer with everything that there is.
func decoding() (y, x device.Tensor, d device.Decode) {
	b := &buffer{1 << 20}
	row := func(n int) device.Tensor { return device.Whole(b, tensor.F32, 1, n) }
	return row(16), row(16), device.Decode{Norm: row(16), Position: 5, Eps: 1e-6, Layers: []device.DecodeLayer{{
		AttnNorm: row(16), AttnPost: row(16), FFNNorm: row(16), FFNPost: row(16), Heads: 4, KVHeads: 2, HeadDim: 8, QKV: &weight{64, 16}, Bias: row(64),
		QNorm: row(8), KNorm: row(16), VNorm: true, Rope: &device.Frequencies{Inv: []float64{1}}, QBeta: .1, QLength: 2,
		Cache: device.Whole(b, tensor.F32, 10, 32), Row: 5, First: 2, Keys: 4, Scale: 1, Cap: 50, O: &weight{16, 32}, OBias: row(16),
		GateUp: &weight{48, 16}, Down: &weight{16, 24}, Act: device.GELUTanh, Residual: .5, OutScale: .7,
		PerLayer: &device.DecodePerLayer{Gate: &weight{6, 16}, Project: &weight{16, 6}, Input: row(6), Norm: row(16)},
	}}}
}

// TestCheckDecode: a whole description is accepted, and one with a mistake is not.
func TestCheckDecode(t *testing.T) {
	y, x, d := decoding()
	device.CheckDecode(y, x, d)
	more := func(n int) device.Tensor { m := x; m.Rows = n; return m }
	device.CheckDecode(y, more(5), d)
	for name, n := range map[string]int{"a cache that is full behind the first": 6, "more results than positions": 0} {
		func() {
			defer func() {
				if m, ok := recover().(device.Misuse); !ok || m.Op != device.OpDecode {
					t.Errorf("%s: %v", name, m)
				}
			}()
			device.CheckDecode(y, more(n), d)
		}()
	}
	for name, spoil := range map[string]func(l *device.DecodeLayer){
		"heads":                     func(l *device.DecodeLayer) { l.Heads = 3 },
		"no matrix":                 func(l *device.DecodeLayer) { l.O = nil },
		"rows of q alone":           func(l *device.DecodeLayer) { l.Shared = true },
		"rows of q and k":           func(l *device.DecodeLayer) { l.VIsK = true },
		"columns of o":              func(l *device.DecodeLayer) { l.O = &weight{16, 24} },
		"columns of down":           func(l *device.DecodeLayer) { l.Down = &weight{16, 25} },
		"a norm of another length":  func(l *device.DecodeLayer) { l.FFNPost.Cols = 8 },
		"a norm of q of other size": func(l *device.DecodeLayer) { l.QNorm.Cols = 16 },
		"a norm of k of other size": func(l *device.DecodeLayer) { l.KNorm.Cols = 32 },
		"a norm in bfloat16":        func(l *device.DecodeLayer) { l.AttnNorm.DType = tensor.BF16 },
		"more pairs than a head":    func(l *device.DecodeLayer) { l.Rope = &device.Frequencies{Inv: make([]float64, 5)} },
		"a scale without length":    func(l *device.DecodeLayer) { l.QLength = 0 },
		"a full cache":              func(l *device.DecodeLayer) { l.Row = 10 },
		"without its own key":       func(l *device.DecodeLayer) { l.Keys = 3 },
		"keys that are not there":   func(l *device.DecodeLayer) { l.Keys = 9 },
		"columns of the cache":      func(l *device.DecodeLayer) { l.Cache.Cols = 16 },
		"a negative cap":            func(l *device.DecodeLayer) { l.Cap = -1 },
		"scale NaN":                 func(l *device.DecodeLayer) { l.Scale = math.NaN() },
		"an unknown activation":     func(l *device.DecodeLayer) { l.Act = 7 },
		"an infinite residual":      func(l *device.DecodeLayer) { l.Residual = math.Inf(1) },
		"bias of o":                 func(l *device.DecodeLayer) { l.OBias.Cols = 8 },
		"a slice of another length": func(l *device.DecodeLayer) { l.PerLayer.Input.Cols = 5 },
	} {
		y, x, d := decoding()
		spoil(&d.Layers[0])
		func() {
			defer func() {
				if m, ok := recover().(device.Misuse); !ok || m.Op != device.OpDecode {
					t.Errorf("%s: %v", name, m)
				}
			}()
			device.CheckDecode(y, x, d)
		}()
	}
}
