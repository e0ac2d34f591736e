package eval_test

import (
	"context"
	"fmt"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/eval"
	"apr/model"
	"apr/modelfile"
)

// A model is scored on the windows of a text, against a reference: here against itself, so that they agree.
func ExampleCompare() {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	files, err := modelfile.Open("../testdata/golden/qwen2/tied_gqa/student")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer files.Close()
	m, err := model.LoadFrozen(dev, files, device.TeacherWeights)
	if err != nil {
		fmt.Println(err)
		return
	}
	text := &corpus.Tokens{IDs: []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	windows, err := corpus.NewWindows(text, 4, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	scores, err := eval.Compare(context.Background(), dev.NewStream(), m, []eval.Subject{{Name: "student", Model: m}}, windows, eval.Options{Vocab: m.Config.Vocab})
	if err != nil {
		fmt.Println(err)
		return
	}
	top1, _ := scores[0].Top1()
	fmt.Printf("%s: %d targets, perplexity %.0f, agreement %.0f %%\n", scores[0].Name, scores[0].Targets, scores[0].Perplexity(), 100*top1)
	// Output:
	// student: 8 targets, perplexity 315, agreement 100 %
}
