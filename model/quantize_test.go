package model_test

import (
	"bytes"
	"errors"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/fault"
	"apr/model"
	"apr/quant"
	"apr/tensor"
)

// lacking is a device that does not train in blocks.
type lacking struct{ device.Device }

func (d lacking) Info() device.Info {
	i := d.Device.Info()
	i.Kind, i.Lacks = "cuda", []device.Feature{device.Quantizes}
	return i
}

func TestQuantizedByRefuses(t *testing.T) {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c, err := arch.Parse("config.json", `{"model_type":"qwen2","hidden_size":64,"intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":2,`+
		`"num_key_value_heads":1,"vocab_size":512,"max_position_embeddings":64,"tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":1}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const q = "model.layers.0.self_attn.q_proj.weight"
	for name, tt := range map[string]struct {
		dev   device.Device
		types map[string]tensor.DType
		kind  fault.Kind
		id    string
	}{
		"a device without blocks": {lacking{dev}, map[string]tensor.DType{q: tensor.Q8_0}, fault.Unavailable, "E-MODEL-040"},
		"rows of no blocks":       {dev, map[string]tensor.DType{q: tensor.Q4_K}, fault.Invalid, "E-MODEL-041"},
	} {
		var f *fault.Error
		if err := model.QuantizedBy(tt.dev, c, tt.types); !errors.As(err, &f) || f.Kind != tt.kind || f.ID != tt.id {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if err := model.QuantizedBy(dev, c, map[string]tensor.DType{q: tensor.Q8_0}); err != nil {
		t.Error(err)
	}
}

// The types of a model's slots are those of the rows of its parameters, and its file has their bytes: k and v lie below q.
func TestStoredSources(t *testing.T) {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c, err := arch.Parse("config.json", `{"model_type":"qwen2","hidden_size":64,"intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":2,`+
		`"num_key_value_heads":1,"vocab_size":512,"max_position_embeddings":64,"tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":1}`, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]tensor.DType{}
	for _, s := range arch.Slots(c) {
		switch {
		case len(s.Shape) < 2:
		case s.Role == arch.V:
			types[s.Name] = tensor.Q8_0
		case s.Role == arch.K:
			types[s.Name] = tensor.BF16
		default:
			types[s.Name] = tensor.Q4_0
		}
	}
	m := model.NewTrainableAs(dev, c, types)
	s := dev.NewStream()
	m.Init(s, 1)
	if !m.Quantized() || model.NewTrainable(dev, c).Quantized() {
		t.Error("Quantized tells other models")
	}
	values, err := m.Stored(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range m.StoredSources(s) {
		want := types[src.Name]
		if want == tensor.Invalid {
			want = tensor.F32
		}
		if src.DType != want {
			t.Errorf("%s is %v, want %v", src.Name, src.DType, want)
		}
		raw := payload(t, src)
		got := make([]float32, src.Elements())
		if want.IsQuantized() {
			quant.Dequantize(got, raw, want)
		} else {
			tensor.Widen(got, raw, want)
		}
		for i, v := range values[src.Name] {
			if !(got[i] == v) {
				t.Fatalf("%s: value %d is %g in the file and %g in the model", src.Name, i, got[i], v)
			}
		}
	}
}

func payload(t *testing.T, s tensor.Source) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Payload(&b); err != nil {
		t.Fatal(err)
	}
	if int64(b.Len()) != s.Size {
		t.Fatalf("%s: %d bytes, want %d", s.Name, b.Len(), s.Size)
	}
	return b.Bytes()
}
