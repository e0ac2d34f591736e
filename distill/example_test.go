package distill_test

import (
	"context"
	"fmt"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/distill"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/teacher"
)

// A trainer takes steps on one batch: the student comes closer to the teacher.
func ExampleTrainer() {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	files, err := modelfile.Open("../testdata/golden/qwen2/tied_gqa/teacher")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer files.Close()
	big, err := model.LoadFrozen(dev, files, device.TeacherWeights)
	if err != nil {
		fmt.Println(err)
		return
	}
	c := files.Config // a student of half the depth
	c.Layers = c.Layers[:(len(c.Layers)+1)/2]
	s := dev.NewStream()
	student := model.NewTrainable(dev, c)
	student.Init(s, 1)

	b := corpus.Batch{Rows: 1, SeqLen: 8, Tokens: []int32{1, 2, 3, 4, 5, 6, 7, 8}, Targets: []int32{2, 3, 4, 5, 6, 7, 8, 9}, Mask: []uint8{0, 0, 1, 1, 1, 1, 1, 1}}
	t := distill.NewTrainer(student, s, b.Rows, b.SeqLen)
	t.Teacher = &teacher.Resident{Model: big}
	t.Loss.Spec = device.LossSpec{Alpha: 0.9, Temperature: 2, Divergence: device.ForwardKL}
	t.Loss.Vocab = c.Vocab
	t.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Cosine, Peak: 1e-2, Warmup: 2, Steps: 10, MinRatio: 0.1},
		AdamW:    device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, MaxNorm: 1,
	}
	var first, last distill.Record
	for k := range 10 {
		if last, err = t.Apply(context.Background(), b); err != nil {
			fmt.Println(err)
			return
		}
		if k == 0 {
			first = last
		}
	}
	fmt.Println(last.Targets, "targets of", last.Tokens, "positions")
	fmt.Println("loss fell:", last.Loss < first.Loss, "KL fell:", last.MeanD < first.MeanD)
	// Output:
	// 6 targets of 8 positions
	// loss fell: true KL fell: true
}
