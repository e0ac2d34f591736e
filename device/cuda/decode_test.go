package cuda

import (
	"reflect"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/dry"
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

// TestDecodeModule goes through every field of a layer's description: each kernel is chosen only for what it computes, and what none
// computes is refused by a name, so that nothing is left out in silence.
func TestDecodeModule(t *testing.T) {
	const plain, variants, general = kernel.LayersModule, kernel.VariantsModule, kernel.GeneralModule
	head := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 8, Stride: 8}
	row := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 32, Stride: 32}
	// By field: another value, and the module that it takes, or a word of the refusal.
	all := map[string]struct {
		change func(l *device.DecodeLayer)
		want   string
	}{
		"AttnNorm": {func(l *device.DecodeLayer) { l.AttnNorm = device.Tensor{} }, general},
		"AttnPost": {func(l *device.DecodeLayer) { l.AttnPost = head }, general},
		"FFNNorm":  {func(l *device.DecodeLayer) { l.FFNNorm = device.Tensor{} }, general},
		"FFNPost":  {func(l *device.DecodeLayer) { l.FFNPost = head }, general},
		"Heads":    {func(l *device.DecodeLayer) { l.Heads = 8 }, general},
		"KVHeads":  {func(l *device.DecodeLayer) { l.KVHeads = 1 }, general},
		"HeadDim":  {func(l *device.DecodeLayer) { l.HeadDim = 16 }, general},
		"QKV":      {func(l *device.DecodeLayer) { l.QKV = l.O }, plain},
		"Bias":     {func(l *device.DecodeLayer) { l.Bias = device.Tensor{} }, plain},
		"QNorm":    {func(l *device.DecodeLayer) { l.QNorm = row }, general},
		"KNorm":    {func(l *device.DecodeLayer) { l.KNorm = row }, general},
		"VNorm":    {func(l *device.DecodeLayer) { l.VNorm = true }, general},
		"VIsK":     {func(l *device.DecodeLayer) { l.VIsK = true }, general},
		"Rope":     {func(l *device.DecodeLayer) { l.Rope = &device.Frequencies{Inv: []float64{1}} }, variants},
		"QBeta":    {func(l *device.DecodeLayer) { l.QBeta, l.QLength = .1, 4 }, variants},
		"QLength":  {func(l *device.DecodeLayer) { l.QLength = 4 }, plain}, // of no use without QBeta
		"Gate":     {func(l *device.DecodeLayer) { l.Gate = true }, "gated attention"},
		"Sinks":    {func(l *device.DecodeLayer) { l.Sinks = head }, "attention sinks"},
		"Cache":    {func(l *device.DecodeLayer) { l.Cache = head }, plain},
		"Shared":   {func(l *device.DecodeLayer) { l.Shared = true }, general},
		"Row":      {func(l *device.DecodeLayer) { l.Row = 4 }, variants},
		"First":    {func(l *device.DecodeLayer) { l.First = 1 }, variants},
		"Keys":     {func(l *device.DecodeLayer) { l.Keys = 7 }, variants},
		"Scale":    {func(l *device.DecodeLayer) { l.Scale = .5 }, general},
		"Cap":      {func(l *device.DecodeLayer) { l.Cap = 50 }, general},
		"O":        {func(l *device.DecodeLayer) { l.O = l.QKV }, plain},
		"OBias":    {func(l *device.DecodeLayer) { l.OBias = head }, general},
		"GateUp":   {func(l *device.DecodeLayer) { l.GateUp = l.QKV }, plain},
		"Down":     {func(l *device.DecodeLayer) { l.Down = l.QKV }, general},
		"Act":      {func(l *device.DecodeLayer) { l.Act = 7 }, "the activation unknown"},
		"Experts": {func(l *device.DecodeLayer) {
			l.Experts = &device.DecodeExperts{Down: l.Down}
		}, "experts in some layers"},
		"PerLayer": {func(l *device.DecodeLayer) { l.PerLayer = &device.DecodePerLayer{} }, general},
		"Residual": {func(l *device.DecodeLayer) { l.Residual = .5 }, general},
		"OutScale": {func(l *device.DecodeLayer) { l.OutScale = .5 }, general},
	}
	if m, err := decodeModule(qwen2Decoding()); m != plain || err != nil {
		t.Fatalf("Qwen2 takes %s, %v", m, err)
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
		m, err := decodeModule(d)
		if refused := strings.Contains(c.want, " "); m != c.want && !refused || refused && (err == nil || !strings.Contains(err.Error(), c.want+" (layer 1)")) {
			t.Errorf("%s: %s, %v, want %s", name, m, err, c.want)
		}
	}
	if len(all) != fields.NumField() {
		t.Errorf("%d fields of %d", len(all), fields.NumField())
	}
	d := qwen2Decoding()
	for i := range d.Layers {
		d.Layers[i].Experts, d.Layers[i].GateUp = &device.DecodeExperts{Count: 8, Active: 2, Down: d.Layers[i].Down}, nil
		d.Layers[i].Down = nil
	}
	if m, err := decodeModule(d); m != kernel.DecodeExpertsModule || err != nil {
		t.Errorf("experts take %s, %v", m, err)
	}
	d = qwen2Decoding()
	d.Layers[0].Act = device.GELUTanh
	if m, err := decodeModule(d); m != general || err != nil {
		t.Errorf("GELU takes %s, %v", m, err)
	}
	if _, err := decodeModule(device.Decode{}); err == nil {
		t.Error("no layers are accepted")
	}
}

// TestDecodesVariants: what takes the kernels of norms, windows and several rotary embeddings.
func TestDecodesVariants(t *testing.T) {
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
		if m, err := decodeModule(d); err != nil || m != kernel.VariantsModule {
			t.Errorf("%s takes %s, %v", name, m, err)
		}
	}
}

// TestPassModule: the kernels of several positions are loaded where such a pass was recorded and they compute its
// layers.
func TestPassModule(t *testing.T) {
	dev := &Device{act: tensor.BF16, desc: driver.DeviceInfo{Major: 9}}
	head := device.Tensor{Buf: &buffer{}, Rows: 1, Cols: 8, Stride: 8}
	other := &device.Frequencies{Inv: []float64{1, .5, .25, .1}}
	for name, c := range map[string]struct {
		few    int
		change func(l *device.DecodeLayer)
		want   bool
	}{
		"several positions":          {4, func(*device.DecodeLayer) {}, true},
		"one position":               {1, func(*device.DecodeLayer) {}, false},
		"norms of heads":             {8, func(l *device.DecodeLayer) { l.QNorm, l.KNorm = head, head }, true},
		"another table":              {4, func(l *device.DecodeLayer) { l.Rope = other }, false},
		"scales of queries":          {4, func(l *device.DecodeLayer) { l.QBeta, l.QLength = .1, 4 }, false},
		"a window":                   {4, func(l *device.DecodeLayer) { l.First, l.Keys = 1, 5 }, false},
		"a factor of what is added":  {4, func(l *device.DecodeLayer) { l.Residual = .5 }, false},
		"what only the general does": {4, func(l *device.DecodeLayer) { l.AttnPost = head }, false},
	} {
		d := qwen2Decoding()
		c.change(&d.Layers[1])
		u := dev.usesOf(&dry.Record{Decode: &d, Few: c.few})
		if u.modules[kernel.PassModule] != c.want {
			t.Errorf("%s: loaded %v", name, !c.want)
		}
	}
}
