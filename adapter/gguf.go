package adapter

import (
	"maps"
	"slices"
	"strings"

	"apr/arch"
	"apr/format/gguf"
	"apr/internal/fault"
)

// readGGUF reads a file of llama.cpp's converter for a model of description c.
func readGGUF(path string, c arch.Config, odd bool) (*Adapter, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := func(key string) string { s, _, _ := f.Metadata().Str(key); return s }
	if kind, sort := text("general.type"), text("adapter.type"); kind != "adapter" || sort != "lora" {
		return nil, fault.In(fault.Format, path, "is no low-rank adapter: general.type %q, adapter.type %q", kind, sort).WithID("E-ADAPTER-020")
	}
	if is, want := text("general.architecture"), architecture(c); is != want {
		return nil, fault.In(fault.Invalid, path, "is an adapter of a model of architecture %q, the model's is %q", is, want).WithID("E-ADAPTER-021")
	}
	alpha, given, err := f.Metadata().Float("adapter.lora.alpha")
	if err != nil {
		return nil, err
	}
	if _, _, _, ok := f.Metadata().Type("adapter.alora.invocation_tokens"); ok {
		return nil, fault.In(fault.Unavailable, path, "activated LoRA: not read").At("key %q", "adapter.alora.invocation_tokens").WithID("E-ADAPTER-015")
	}
	by, err := pairs(path, f.Tensors(), splitGGUF)
	if err != nil {
		return nil, err
	}
	a, slots := &Adapter{Base: text(baseKey), Norms: text(normsKey), Times: text(timesKey)}, Slots(c)
	used := map[string][]Module{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		scale := 1.0
		if given && alpha != 0 { // llama.cpp: without alpha the product is not scaled
			scale = alpha / float64(by[name].a.Shape[0])
		}
		ms, err := by[name].modules(path, name, slots, func(s arch.Slot) arch.Place { return s.GGUF }, scale)
		if err != nil {
			return nil, err
		}
		a.Modules, used[name] = append(a.Modules, ms...), ms
	}
	if err := f.Verify(); err != nil {
		return nil, err
	}
	return a, a.damage(path, by, used, odd)
}

// splitGGUF returns the matrix of a tensor, and which of the two it is.
func splitGGUF(name string) (matrix, which string, ok bool) {
	if m, is := strings.CutSuffix(name, ".lora_a"); is {
		return m, "a", true
	}
	m, is := strings.CutSuffix(name, ".lora_b")
	return m, "b", is
}

// architecture is general.architecture of a model's GGUF files.
func architecture(c arch.Config) string {
	s, _ := arch.GGUFMetadata(c)[0].Value.(string)
	return s
}

// SaveGGUF writes the adapter of a model of description c as a file that llama.cpp loads beside the model. It has one alpha: B of a
// matrix with another alpha/r is multiplied by what is missing.
func (a *Adapter) SaveGGUF(path string, c arch.Config, force bool) error {
	if c.Tied && a.head() {
		return fault.New(fault.Unavailable, "readers of GGUF have no output matrix of a model whose head is tied, which an adapter could change").
			WithHint("write the merged model instead, or leave head out of --lora-targets").WithID("E-ADAPTER-022")
	}
	all, err := a.placed(func(s arch.Slot) arch.Place { return s.GGUF })
	if err != nil {
		return err
	}
	alpha := all[0].alpha()
	for i := range all {
		s := &all[i]
		if f := float32(s.alpha() / alpha); f != 1 {
			for k := range s.b {
				s.b[k] *= f
			}
		}
	}
	meta := []gguf.KV{
		{Key: "general.architecture", Value: architecture(c)}, {Key: "general.type", Value: "adapter"},
		{Key: "adapter.type", Value: "lora"}, {Key: "adapter.lora.alpha", Value: float32(alpha)},
	}
	for _, kv := range []gguf.KV{
		{Key: baseKey, Value: a.Base}, {Key: normsKey, Value: a.Norms}, {Key: timesKey, Value: a.Times},
	} {
		if kv.Value != "" {
			meta = append(meta, kv)
		}
	}
	return gguf.Write(path, sources(all, func(s stored, which string) string { return s.name + ".lora_" + which }), gguf.Options{Force: force, Metadata: meta})
}
