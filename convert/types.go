package convert

import "apr/tensor"

// GGUFTypes returns the element type that a scheme gives each tensor in a GGUF file, by name. tensors are those of a model
// of so many layers.
func GGUFTypes(s Scheme, tensors []tensor.Stored, layers int) (map[string]tensor.DType, error) {
	plan, err := rule{scheme: s, to: toGGUF}.plan(tensors, layers)
	if err != nil {
		return nil, err
	}
	types := map[string]tensor.DType{}
	for _, c := range plan {
		types[c.Source.Name] = c.DType
	}
	return types, nil
}
