package model

import (
	"apr/tensor"
	"apr/tokenizer"
)

// SaveAPR is being written.
func SaveAPR(path string, c Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, distillation map[string]any, force bool) error {
	return nil
}
