package cpu

import (
	"testing"

	"apr/device"
	"apr/tensor"
)

// BenchmarkMix measures a second teacher's logits joining the first's, in bytes of a float32 logit.
func BenchmarkMix(b *testing.B) {
	d, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	s, host := d.NewStream(), make([]float32, 256*4096)
	for i := range host {
		host[i] = float32(i%37) * .3
	}
	y := s.Temp("y", device.Logits, tensor.F32, 256, 4096)
	t := s.Temp("t", device.Logits, tensor.F32, 256, 4096)
	s.Upload(y, host)
	s.Upload(t, host)
	b.SetBytes(int64(4 * len(host)))
	for b.Loop() {
		s.Mix(y, t, .5, 1, true)
	}
}
