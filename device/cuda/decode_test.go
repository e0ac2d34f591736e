package cuda

import (
	"reflect"
	"strings"
	"testing"

	"apr/device"
	"apr/tensor"
)

// qwen2Decoding describes two layers of what the kernel of all layers computes.
func qwen2Decoding() device.Decode {
	some := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 16, Stride: 16}
	matrix := func(rows, cols int) device.Weight {
		return &weight{t: device.Tensor{Rows: rows, Cols: cols, DType: tensor.BF16}}
	}
	d := device.Decode{Norm: some, Position: 5, Eps: 1e-6}
	table := &device.Frequencies{Inv: []float64{1, .5, .25, .1}}
	for range 2 {
		d.Layers = append(d.Layers, device.DecodeLayer{
			AttnNorm: some, FFNNorm: some, Heads: 4, KVHeads: 2, HeadDim: 8, QKV: matrix(64, 16), Bias: some, Rope: table, Cache: some,
			Row: 5, Keys: 6, O: matrix(16, 32), GateUp: matrix(48, 16), Down: matrix(16, 24),
		})
	}
	return d
}

// TestDecodeNamesWhatItLacks goes through every field of a layer's description: what the kernel does not compute is refused by
// a name, so that nothing is left out in silence.
func TestDecodeNamesWhatItLacks(t *testing.T) {
	some := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 8, Stride: 8}
	row := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 32, Stride: 32}
	// By field: another value, and a word of the refusal; no word where the kernel computes it.
	all := map[string]struct {
		change func(l *device.DecodeLayer)
		want   string
	}{
		"AttnNorm": {func(l *device.DecodeLayer) { l.AttnNorm = device.Tensor{} }, "without norms before"},
		"AttnPost": {func(l *device.DecodeLayer) { l.AttnPost = some }, "norms after"},
		"FFNNorm":  {func(l *device.DecodeLayer) { l.FFNNorm = device.Tensor{} }, "without norms before"},
		"FFNPost":  {func(l *device.DecodeLayer) { l.FFNPost = some }, "norms after"},
		"Heads":    {func(l *device.DecodeLayer) { l.Heads = 8 }, "kinds of heads"},
		"KVHeads":  {func(l *device.DecodeLayer) { l.KVHeads = 1 }, "kinds of heads"},
		"HeadDim":  {func(l *device.DecodeLayer) { l.HeadDim = 16 }, "kinds of heads"},
		"QKV":      {func(l *device.DecodeLayer) { l.QKV = l.O }, ""},
		"Bias":     {func(l *device.DecodeLayer) { l.Bias = device.Tensor{} }, ""},
		"QNorm":    {func(l *device.DecodeLayer) { l.QNorm = row }, "norms of rows"},
		"KNorm":    {func(l *device.DecodeLayer) { l.KNorm = row }, "norms of rows"},
		"VNorm":    {func(l *device.DecodeLayer) { l.VNorm = true }, "norms of v"},
		"VIsK":     {func(l *device.DecodeLayer) { l.VIsK = true }, "values that are keys"},
		"Rope":     {func(l *device.DecodeLayer) { l.Rope = &device.Frequencies{Inv: []float64{1}} }, ""},
		"QBeta":    {func(l *device.DecodeLayer) { l.QBeta, l.QLength = .1, 4 }, ""},
		"QLength":  {func(l *device.DecodeLayer) { l.QLength = 4 }, ""}, // of no use without QBeta
		"Gate":     {func(l *device.DecodeLayer) { l.Gate = true }, "gated attention"},
		"Sinks":    {func(l *device.DecodeLayer) { l.Sinks = some }, "attention sinks"},
		"Cache":    {func(l *device.DecodeLayer) { l.Cache = some }, ""},
		"Shared":   {func(l *device.DecodeLayer) { l.Shared = true }, "caches that layers share"},
		"Row":      {func(l *device.DecodeLayer) { l.Row = 4 }, ""},
		"First":    {func(l *device.DecodeLayer) { l.First = 1 }, ""},
		"Keys":     {func(l *device.DecodeLayer) { l.Keys = 7 }, ""},
		"Scale":    {func(l *device.DecodeLayer) { l.Scale = .5 }, "several scales"},
		"Cap":      {func(l *device.DecodeLayer) { l.Cap = 50 }, "soft-caps"},
		"O":        {func(l *device.DecodeLayer) { l.O = l.QKV }, ""},
		"OBias":    {func(l *device.DecodeLayer) { l.OBias = some }, "biases of o"},
		"GateUp":   {func(l *device.DecodeLayer) { l.GateUp = l.QKV }, ""},
		"Down":     {func(l *device.DecodeLayer) { l.Down = l.QKV }, "several widths"},
		"Act":      {func(l *device.DecodeLayer) { l.Act = device.GELUTanh }, "gelu_tanh"},
		"PerLayer": {func(l *device.DecodeLayer) { l.PerLayer = &device.DecodePerLayer{} }, "per-layer embeddings"},
		"Residual": {func(l *device.DecodeLayer) { l.Residual = .5 }, "several factors"},
		"OutScale": {func(l *device.DecodeLayer) { l.OutScale = .5 }, "layer's output"},
	}
	if err := decodeLacks(qwen2Decoding()); err != nil {
		t.Fatalf("Qwen2 is refused: %v", err)
	}
	fields := reflect.TypeFor[device.DecodeLayer]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		c, ok := all[name]
		if !ok {
			t.Errorf("nobody says what the kernel does about %s", name)
			continue
		}
		d := qwen2Decoding()
		before := d.Layers[1]
		c.change(&d.Layers[1])
		if reflect.DeepEqual(reflect.ValueOf(before).Field(i).Interface(), reflect.ValueOf(d.Layers[1]).Field(i).Interface()) && name != "Rope" {
			t.Errorf("%s was not changed", name)
		}
		switch err := decodeLacks(d); {
		case c.want == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "layer 1")):
			t.Errorf("%s: %v, want a refusal of %q", name, err, c.want)
		}
	}
	if len(all) != fields.NumField() {
		t.Errorf("%d fields of %d", len(all), fields.NumField())
	}
	if decodeLacks(device.Decode{}) == nil {
		t.Error("no layers are accepted")
	}
}

// TestDecodesVariants: what takes the kernels of norms, windows and several rotary embeddings.
func TestDecodesVariants(t *testing.T) {
	if decodesVariants(qwen2Decoding()) {
		t.Error("Qwen2 takes the other kernels")
	}
	head := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 8, Stride: 8}
	for name, change := range map[string]func(l *device.DecodeLayer){
		"QNorm": func(l *device.DecodeLayer) { l.QNorm = head }, "KNorm": func(l *device.DecodeLayer) { l.KNorm = head },
		"no rotary embedding":      func(l *device.DecodeLayer) { l.Rope = nil },
		"a part of a head":         func(l *device.DecodeLayer) { l.Rope = &device.Frequencies{Inv: []float64{1}} },
		"QBeta":                    func(l *device.DecodeLayer) { l.QBeta, l.QLength = .1, 4 },
		"another rotary embedding": func(l *device.DecodeLayer) { l.Rope = &device.Frequencies{Inv: l.Rope.Inv, Factor: 2} },
		"Row":                      func(l *device.DecodeLayer) { l.Row = 4 },
		"First":                    func(l *device.DecodeLayer) { l.First, l.Keys = 1, 5 },
		"Keys":                     func(l *device.DecodeLayer) { l.Keys = 7 },
	} {
		d := qwen2Decoding()
		change(&d.Layers[1])
		if err := decodeLacks(d); err != nil || !decodesVariants(d) {
			t.Errorf("%s: variants %v, %v", name, decodesVariants(d), err)
		}
	}
}
