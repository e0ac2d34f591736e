//go:build gpu

package cuda_test

import (
	"context"
	"testing"

	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestBlocksSpeed prints, at the shapes of a 7B model, how fast matrices in blocks are expanded, against a copy, and how fast
// one row is multiplied with them.
func TestBlocksSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream().(*cuda.Stream)
	c, err := bench.Shape("7b")
	if err != nil {
		t.Fatal(err)
	}
	c.Layers = 1
	big := s.Temp("from", device.Activations, tensor.BF16, 37888, 3584)
	to := s.Temp("to", device.Activations, tensor.BF16, 37888, 3584)
	copied := 2 * 2 * float64(big.Rows) * float64(big.Cols) / profiled(t, d, s, func() { s.Copy(to, big) })
	t.Logf("copy %.2f TB/s", copied/1e12)
	s.Release(big, to)
	for _, scheme := range []convert.Scheme{convert.Q4_K_M, convert.Q6_K, convert.Q8_0} {
		f, err := bench.RandomQuantised(c, 1, scheme)
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range [][]string{
			{"mlp.gate_proj.weight", "mlp.up_proj.weight"}, {"mlp.down_proj.weight"},
			{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, {"self_attn.o_proj.weight"}, {"lm_head.weight"},
		} {
			spec := device.WeightSpec{Name: names[0], Component: device.TeacherWeights, Form: device.Form{Blocks: true}}
			for _, n := range names {
				if n != "lm_head.weight" {
					n = "model.layers.0." + n
				}
				src, err := f.Source(n)
				if err != nil {
					t.Fatal(err)
				}
				spec.Parts = append(spec.Parts, src)
			}
			w, err := d.Weight(spec)
			if err != nil {
				t.Fatal(err)
			}
			bytes, values := float64(w.Bytes()), float64(w.Rows())*float64(w.Cols())
			expand := profiled(t, d, s, func() { s.Expand(w) })
			x := s.Temp("x", device.Activations, tensor.BF16, 1, w.Cols())
			y := s.Temp("y", device.Activations, tensor.F32, 1, w.Rows())
			decode := profiled(t, d, s, func() { s.MatMul(y, x, w, device.Tensor{}, false) })
			rate := (bytes + 2*values) / expand
			t.Logf("%-7s %6d×%-6d expand %7.4f ms %5.2f TB/s %3.0f %% of a copy; decode %7.4f ms %5.2f TB/s", scheme, w.Rows(), w.Cols(),
				1e3*expand, rate/1e12, 100*rate/copied, 1e3*decode, bytes/decode/1e12)
			s.Release(x, y)
		}
	}
}

// profiled returns the seconds on the device of all operations of a call, on average.
func profiled(t *testing.T, d *cuda.Device, s device.Stream, f func()) float64 {
	t.Helper()
	const times = 20
	for range 5 {
		f()
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	d.StartProfile()
	for range times {
		f()
	}
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, st := range stats {
		sum += st.Time.Seconds()
	}
	return sum / times
}
