package teacher

import (
	"apr/corpus"
	"apr/device"
	"apr/model"
	"apr/tensor"
)

// Lesson is a teacher whose body another process computes, and whose head is here. The final hidden states come as the
// device holds them, so that logits have the bits that they would have if the body were here.
type Lesson struct {
	Resident // Model needs a head and no layers
	// Bring waits for the hidden states of the kept positions of a batch; nil on a device that computes nothing.
	Bring func(b corpus.Batch) (Heard, error)

	heard Heard
}

// Heard are the hidden states of the kept positions of a batch [N, h].
type Heard struct {
	Stored []byte // in the type of the device's activations, little-endian; or
	// Receive has them copied to dst, once, from where they are on another device.
	Receive func(s device.Stream, dst device.Tensor)
}

// Fetch waits for the hidden states of the kept positions of b.
func (t *Lesson) Fetch(b corpus.Batch) (err error) {
	if t.Bring == nil {
		return nil
	}
	t.heard, err = t.Bring(b)
	return err
}

// Begin copies the hidden states to the device.
func (t *Lesson) Begin(s device.Stream, b *model.Batch) {
	act := t.Model.Device().Info().Activations
	t.hidden = s.Temp("teacher.kept", device.Activations, act, b.N, t.Model.Config.Hidden)
	if t.Bring == nil {
		return
	}
	if receive := t.heard.Receive; receive != nil {
		t.heard.Receive = nil
		receive(s, t.hidden)
		return
	}
	if len(t.heard.Stored) != b.N*t.Model.Config.Hidden*act.BlockBytes() {
		panic("teacher: Begin of a batch that was not fetched")
	}
	if act == tensor.F32 {
		values := make([]float32, b.N*t.Model.Config.Hidden)
		tensor.Widen(values, t.heard.Stored, act)
		s.Upload(t.hidden, values)
		return
	}
	device.UploadStored(s, t.hidden, t.heard.Stored)
}
