//go:build gpu

package cuda_test

import (
	"context"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// TestAttentionSpeed prints the time of attention at the sizes of published models, 8 rows of 1024 positions.
func TestAttentionSpeed(t *testing.T) {
	for _, c := range []cuda.Compute{cuda.BF16, cuda.TF32} {
		t.Run(c.String(), func(t *testing.T) { attentionSpeed(t, c) })
	}
}

func attentionSpeed(t *testing.T, c cuda.Compute) {
	d := open(t, cuda.Options{Compute: c})
	defer d.Close()
	s := d.NewStream()
	for _, h := range []struct{ heads, kv, d int }{{28, 4, 128}, {12, 2, 128}, {14, 2, 64}} {
		const rows, seq = 8, 1024
		a := device.Attn{Batch: rows, QLen: seq, KLen: seq, KStride: seq, Heads: h.heads, KVHeads: h.kv, HeadDim: h.d}
		q, kv, n := h.heads*h.d, h.kv*h.d, rows*seq
		temp := func(cols int) device.Tensor {
			x := s.Temp("attention", device.Activations, d.Info().Activations, n, cols)
			host := make([]float32, n*cols)
			seed := uint32(cols)
			for i := range host {
				seed = seed*1664525 + 1013904223
				host[i] = float32(int32(seed)) / (1 << 31)
			}
			s.Upload(x, host)
			return x
		}
		qkv, dqkv, o, do := temp(q+2*kv), temp(q+2*kv), temp(q), temp(q)
		lse := s.Temp("lse", device.Activations, tensor.F32, n, h.heads)
		split := func(x device.Tensor) (a, b, c device.Tensor) {
			return x.ColRange(0, q), x.ColRange(q, q+kv), x.ColRange(q+kv, q+2*kv)
		}
		qt, kt, vt := split(qkv)
		dq, dk, dv := split(dqkv)
		run := func() {
			s.Attention(o, lse, qt, kt, vt, a)
			s.AttentionBackward(dq, dk, dv, do, o, lse, qt, kt, vt, a)
		}
		for range 10 {
			run()
		}
		if _, err := s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		d.StartProfile()
		for range 20 {
			run()
		}
		if _, err := s.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		stats, err := d.Profile()
		if err != nil {
			t.Fatal(err)
		}
		flops := 2 * float64(rows*h.heads*h.d) * seq * seq // causal half of two products
		for _, st := range stats {
			ms, factor := st.Time.Seconds()*1e3/float64(st.Calls), 1.0
			if st.Op[:10] == "AttentionB" {
				factor = 2.5
			}
			t.Logf("%-36s %7.4f ms  %4.0f TFLOP/s", st.Op, ms, factor*flops/ms/1e9)
		}
		s.Release(qkv, dqkv, o, do, lse)
	}
}
