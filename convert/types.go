package convert

import (
	"apr/arch"
	"apr/tensor"
)

// GGUFTypes returns the element type that a scheme gives each tensor of a model in a GGUF file, by slot.
func GGUFTypes(s Scheme, c arch.Config, tensors []tensor.Stored) (map[string]tensor.DType, error) {
	plan, err := rule{scheme: s, to: toGGUF}.plan(tensors, rolesOf(c, toGGUF))
	if err != nil {
		return nil, err
	}
	types := map[string]tensor.DType{}
	for _, c := range plan {
		types[c.Source.Name] = c.DType
	}
	return types, nil
}
