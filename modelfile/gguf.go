package modelfile

import (
	"apr/arch"
	"apr/format/gguf"
	"apr/internal/fault"
	"apr/tensor"
)

// OpenGGUFConfig reads the configuration that a GGUF file carries under the keys of llama.cpp; see arch.FromGGUF.
func OpenGGUFConfig(f *gguf.File) (arch.Config, error) {
	c, err := arch.FromGGUF(f.Path(), ggufKeys{f})
	if embed, ok := f.Tensor("token_embd.weight"); ok {
		c.DType = embed.DType
	}
	return c, err
}

// ggufKeys is a file as arch reads it.
type ggufKeys struct{ f *gguf.File }

func (g ggufKeys) Value(key string) (any, bool) { return g.f.Metadata().Value(key) }

func (g ggufKeys) Shape(name string) ([]int, bool) {
	t, ok := g.f.Tensor(name)
	return t.Shape, ok
}

// maxTable is more than the values of a rotary table.
const maxTable = 1 << 20

func (g ggufKeys) Floats(name string) ([]float32, error) {
	t, ok := g.f.Tensor(name)
	if !ok || t.DType != tensor.F32 || t.Elements() > maxTable {
		return nil, fault.In(fault.Format, g.f.Path(), "is no table of f32").At("tensor %q", name).WithID("E-GGUF-023")
	}
	return ReadFloat32(g.f.Path(), t)
}
