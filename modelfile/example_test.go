package modelfile_test

import (
	"fmt"
	"log"

	"apr/modelfile"
	"apr/tokenizer"
)

// A model is opened by its content, whatever its format; its tensors have the names of arch.Slots.
func ExampleOpen() {
	for _, path := range []string{"../testdata/models/gosrc", "../testdata/models/gosrc-q4_k_m.gguf"} {
		f, err := modelfile.Open(path)
		if err != nil {
			log.Fatal(err)
		}
		norm, err := f.ReadFloat32("model.norm.weight")
		if err != nil {
			log.Fatal(err)
		}
		tok, err := f.Tokenizer()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(f.Config.Family, f.Config.Parameters(), len(norm), len(tok.Encode("package main", tokenizer.PlainText)))
		_ = f.Close()
	}
	// Output:
	// qwen2 6854912 256 2
	// qwen2 6854912 256 2
}
