package generate_test

import (
	"context"
	"fmt"

	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/model"
	"apr/modelfile"
	"apr/tokenizer"
)

// A small model of Go source continues a file greedily.
func ExampleGenerate() {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	files, err := modelfile.Open("../testdata/models/gosrc")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer files.Close()
	tok, err := files.Tokenizer()
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := model.LoadFrozen(dev, files, device.TeacherWeights)
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt := tok.Encode("if err != nil {\n\t", tokenizer.PlainText)
	r, err := generate.Generate(context.Background(), m, dev.NewStream(), prompt,
		generate.Options{MaxTokens: 4, RepeatPenalty: 1, Vocab: tok.RealIDs()}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := tok.Decode(r.IDs)
	fmt.Printf("%q, by %s\n", text, r.FinishReason)
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// "\treturn nil, err", by length
}
