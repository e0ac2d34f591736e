package selfcheck

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
)

func gosrc(t *testing.T) *modelfile.Files {
	t.Helper()
	f, err := modelfile.Open("../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// turned is a stream whose rotary embedding turns by another position in decoding.
type turned struct{ device.Stream }

func (b turned) Rotate(x device.Tensor, r device.Rotary) {
	if x.Rows == 1 && r.Offset >= AgreePrompt+1 {
		r.Offset++
	}
	b.Stream.Rotate(x, r)
}

// late is a stream whose products of the third layer are wrong: the last column is that of another row.
type late struct {
	device.Stream
	calls *int
}

func (b late) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	*b.calls++
	if (*b.calls-1)%b.layers() == 2 {
		a.Heads, a.HeadDim = a.Heads*2, a.HeadDim/2 // heads of half the width
		a.KVHeads *= 2
	}
	b.Stream.Attention(o, lse, q, k, v, a)
}

func (late) layers() int { return 6 }

// TestAgree: a device that computes right agrees; planted errors are refused, by place, layer and operation.
func TestAgree(t *testing.T) {
	f := gosrc(t)
	if n := len(f.Arch().Layers); n != (late{}).layers() {
		t.Fatalf("%d layers", n)
	}
	for _, tt := range []struct {
		name, want string
		make       func(device.Stream) device.Stream
	}{
		{"right", "", func(s device.Stream) device.Stream { return s }},
		{"the second decoding step", "at decoding step 2 its logits have a cosine of 0.945241 to the CPU's, " +
			"and 0.9999 is the least that is accepted; the first operation that differs is layer 0, Rotate,",
			func(s device.Stream) device.Stream { return turned{s} }},
		{"an operation of a layer", "the first operation that differs is layer 2, Attention,",
			func(s device.Stream) device.Stream { return late{s, new(int)} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			a, err := Agree(context.Background(), wrong{newCPU(t, ""), tt.make}, newCPU(t, ""), f)
			t.Logf("%v: %v", a, err)
			switch {
			case tt.want == "" && (err != nil ||
				!(a.Cosine > 0.999999) || a.Layers != a.Of || a.Positions != 16 || a.Steps != 8):
				t.Errorf("%+v, %v", a, err)
			case tt.want != "" && (fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want a refusal with %q", err, tt.want)
			}
		})
	}
}

// described are weights with nothing but a description and types.
type described struct {
	arch.Config
	*modelfile.Files
}

func (d described) Arch() arch.Config { return d.Config }

// TestExcerpt: of a model that is too large a layer of each kind is compared, and as many more as there is time
// for; its tensors are those of the model's own layers.
func TestExcerpt(t *testing.T) {
	f := gosrc(t)
	c := f.Arch()
	x, err := newExcerpt(f)
	if err != nil || fmt.Sprint(x.layers) != "[0 1 2 3 4 5]" || x.rows != 0 {
		t.Fatalf("%v, %d rows, %v: want all", x.layers, x.rows, err)
	}
	x.layers = []int{0, 2}
	if got := x.name("model.layers.1.mlp.gate_proj.weight"); got != "model.layers.2.mlp.gate_proj.weight" {
		t.Error(got)
	}
	if got := x.name("model.norm.weight"); got != "model.norm.weight" {
		t.Error(got)
	}
	wide := c
	wide.Vocab, wide.Layers = 1<<20, nil // too many products
	for i := range c.Layers {
		l := c.Layers[i]
		if i == 3 {
			l.Attn.Window = 4
		}
		l.FFN.Width = 1 << 19
		wide.Layers = append(wide.Layers, l)
	}
	x, err = newExcerpt(described{wide, f})
	if err != nil || fmt.Sprint(x.layers) != "[0 3]" || x.config.Vocab != excerptRows ||
		x.config.Layers[1].Attn.KVFrom != 1 {
		t.Errorf("%v, vocabulary %d, %v: want a layer of each kind", x.layers, x.config.Vocab, err)
	}
	src, err := excerpt{Weights: f, config: c, layers: []int{0}, rows: 100}.Source("model.embed_tokens.weight")
	if err != nil || src.Info().Rows() != 100 || src.Info().Size%100 != 0 {
		t.Errorf("%v, %v", src, err)
	}
	if !math.IsNaN(cosine([]float32{1}, []float32{0})) || cosine([]float32{0}, []float32{0}) != 1 ||
		!math.IsNaN(cosine([]float32{float32(math.Inf(1))}, []float32{1})) {
		t.Error("cosines of nothing, or of what is not finite")
	}
}
