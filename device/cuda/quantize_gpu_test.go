//go:build gpu

package cuda_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/quant"
	"apr/tensor"
)

// TestQuantizeAwareBytes compares a matrix of Qwen3 0.6B in every type with the bytes of package quant: a search, and
// then rounding after the weights have moved.
func TestQuantizeAwareBytes(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.Q3_K, tensor.Q2_K, tensor.IQ4_NL, tensor.MXFP4} {
		t.Run(d.String(), func(t *testing.T) {
			dev := open(t, cuda.Options{})
			defer dev.Close()
			s := dev.NewStream()
			const rows, cols = 1024, 1024
			p := dev.Param(device.ParamSpec{Name: "w", Rows: rows, Cols: cols, Blocks: []device.BlockRows{{DType: d, Rows: rows}}})
			rng := rand.New(rand.NewPCG(3, uint64(d)))
			x, want, got := make([]float32, rows*cols), make([]byte, p.Stored.Cols), make([]byte, p.Stored.Cols)
			for i := range x {
				x[i] = float32(0.03 * rng.NormFloat64())
				if rng.IntN(500) == 0 {
					x[i] *= 30
				}
			}
			for round, how := range []func([]byte, []float32, tensor.DType) error{quant.Quantize, quant.Round} {
				s.Upload(p.Value, x)
				if round == 0 {
					s.RefreshWeight(p)
				} else {
					s.SetScalars(device.Scalars{InvN: 1})
					s.Verdict([]*device.Param{p}) // of no loss and no gradient: it refuses nothing
					s.(device.Quantizer).Quantize([]*device.Param{p}, false)
				}
				if err := how(want, x, d); err != nil {
					t.Fatal(err)
				}
				if err := s.(device.Quantizer).StoredBytes(got, p); err != nil {
					t.Fatal(err)
				}
				different := 0
				for i := range want {
					if got[i] != want[i] {
						different++
					}
				}
				if different > 0 {
					t.Errorf("round %d: %d of %d bytes differ", round, different, len(want))
				}
				for i := range x {
					x[i] += float32(0.001 * rng.NormFloat64())
				}
			}
		})
	}
}

// qwen06B are the matrices of Qwen3 0.6B in q4_k_m, by how many there are; q, k and v, and gate and up, stand below
// each other.
var qwen06B = []struct {
	count, cols int
	blocks      []device.BlockRows
}{
	{14, 1024, []device.BlockRows{{DType: tensor.Q4_K, Rows: 3072}, {DType: tensor.Q6_K, Rows: 1024}}},
	{14, 1024, []device.BlockRows{{DType: tensor.Q4_K, Rows: 4096}}},
	{28, 2048, []device.BlockRows{{DType: tensor.Q4_K, Rows: 1024}}},
	{28, 1024, []device.BlockRows{{DType: tensor.Q4_K, Rows: 6144}}},
	{14, 3072, []device.BlockRows{{DType: tensor.Q6_K, Rows: 1024}}},
	{14, 3072, []device.BlockRows{{DType: tensor.Q4_K, Rows: 1024}}},
	{1, 1024, []device.BlockRows{{DType: tensor.Q6_K, Rows: 151936}}},
}

// TestQuantizeAwareSpeed prints the time in which all matrices of Qwen3 0.6B are put into blocks: by a search, and by
// rounding.
func TestQuantizeAwareSpeed(t *testing.T) {
	dev := open(t, cuda.Options{})
	defer dev.Close()
	s := dev.NewStream()
	var params []*device.Param
	values := 0
	rng := rand.New(rand.NewPCG(1, 2))
	host := make([]float32, 1<<20)
	for i := range host {
		host[i] = float32(0.02 * rng.NormFloat64())
	}
	for _, m := range qwen06B {
		rows := 0
		for _, b := range m.blocks {
			rows += b.Rows
		}
		for range m.count {
			p := dev.Param(device.ParamSpec{Name: "w", Rows: rows, Cols: m.cols, Blocks: m.blocks})
			for lo := 0; lo < rows; lo += len(host) / m.cols {
				n := min(len(host)/m.cols, rows-lo)
				s.Upload(p.Value.RowRange(lo, lo+n), host[:n*m.cols])
			}
			params, values = append(params, p), values+rows*m.cols
		}
	}
	s.SetScalars(device.Scalars{InvN: 1})
	s.Verdict(params)
	for _, search := range []bool{true, false} {
		run := func(n int) {
			for range n {
				s.(device.Quantizer).Quantize(params, search)
			}
			if _, err := s.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		run(3)
		dev.StartProfile()
		const rounds = 5
		run(rounds)
		stats, err := dev.Profile()
		if err != nil {
			t.Fatal(err)
		}
		ms := 0.0
		for _, st := range stats {
			ms += st.Time.Seconds() * 1e3 / rounds
		}
		t.Logf("%d values, search %v: %.2f ms, %.2f ns per 1,000 values", values, search, ms, ms*1e9/float64(values))
	}
}
