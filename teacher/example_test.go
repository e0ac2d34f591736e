package teacher_test

import (
	"fmt"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/model"
	"apr/modelfile"
	"apr/teacher"
	"apr/tensor"
)

// A teacher runs its body once over a batch; the loss then asks for the logits of the kept positions, a piece at a
// time, over the vocabulary that both models share.
func Example() {
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dev.Close()
	files, err := modelfile.Open(path)
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
	s := dev.NewStream()
	batch := model.NewBatch(dev, 1, 4)
	batch.Load(s, corpus.Batch{Rows: 1, SeqLen: 4, Tokens: []int32{5, 6, 7, 8}, Targets: []int32{6, 7, 8, 9}, Mask: []uint8{0, 1, 1, 1}}, 1)

	t := teacher.Resident{Model: m}
	t.Begin(s, batch)
	logits := s.Temp("logits", device.Logits, tensor.F32, 2, 320)
	t.Logits(s, 1, 3, logits) // the last two of three kept positions
	host := make([]float32, 2*320)
	if err := s.Download(host, logits); err != nil {
		fmt.Println(err)
		return
	}
	s.Release(logits)
	t.End(s)
	fmt.Println(batch.N, "kept positions,", m.Config.Vocab, "ids, of which", len(host)/2, "are shared")
	// Output:
	// 3 kept positions, 352 ids, of which 320 are shared
}
