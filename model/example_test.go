package model_test

import (
	"fmt"

	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/modelfile"
	"apr/tensor"
)

// A model is opened, put on a device, and asked what follows two tokens.
func Example() {
	files, err := modelfile.Open("../testdata/golden/qwen2/tied_gqa/student")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer files.Close()
	if err := files.CheckTensors(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(files.Config)
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	m, err := model.LoadFrozen(dev, files, device.TeacherWeights)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := dev.NewStream()
	ids := dev.Alloc("ids", device.Batch, tensor.I32, 2, 1)
	hidden := dev.Alloc("hidden", device.Activations, tensor.F32, 1, m.Config.Hidden)
	s.UploadInts(ids, []int32{17, 4})
	m.Extend(s, hidden, m.NewCache(16), ids)
	logits := make([]float32, m.Config.Vocab)
	if err := m.NextLogits(s, logits, hidden); err != nil {
		fmt.Println(err)
		return
	}
	best := 0
	for i, z := range logits {
		if z > logits[best] {
			best = i
		}
	}
	fmt.Println("most likely next id:", best)
	// Output:
	// qwen2, 2 layers, hidden 64, 4/2 heads of 16, intermediate 160, vocabulary 320, tied head, 0.11M parameters
	// most likely next id: 34
}
