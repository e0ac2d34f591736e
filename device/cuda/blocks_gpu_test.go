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

// TestBlocksSpeed prints, at the shapes of a 7B model, how fast matrices in blocks are expanded, against a copy, and how fast
// one row is multiplied with them.
func TestBlocksSpeed(t *testing.T) {
	d := open(t, cuda.Options{})
	defer d.Close()
	s := d.NewStream().(*cuda.Stream)
	big := s.Temp("from", device.Activations, tensor.BF16, 37888, 3584)
	to := s.Temp("to", device.Activations, tensor.BF16, 37888, 3584)
	copied := 2 * 2 * float64(big.Rows) * float64(big.Cols) / profiled(t, d, s, func() { s.Copy(to, big) })
	t.Logf("copy %.2f TB/s", copied/1e12)
	s.Release(big, to)
	for _, kind := range []struct {
		name       string
		low, large tensor.DType
	}{{"q4_k_m", tensor.Q4_K, tensor.Q6_K}, {"q6_k", tensor.Q6_K, tensor.Q6_K}, {"q8_0", tensor.Q8_0, tensor.Q8_0}} {
		for _, w := range [][]device.Source{
			{inBlocks(t, kind.low, 18944, 3584), inBlocks(t, kind.low, 18944, 3584)}, {inBlocks(t, kind.large, 3584, 18944)},
			{inBlocks(t, kind.low, 3584, 3584), inBlocks(t, kind.low, 512, 3584), inBlocks(t, kind.large, 512, 3584)},
			{inBlocks(t, kind.low, 3584, 3584)}, {inBlocks(t, kind.large, 152064, 3584)},
		} {
			spec := device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: w, Form: device.Form{Blocks: true}}
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
			t.Logf("%-7s %6d×%-6d expand %7.4f ms %5.2f TB/s %3.0f %% of a copy; decode %7.4f ms %5.2f TB/s", kind.name, w.Rows(), w.Cols(),
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

// table is a matrix whose bytes repeat.
type table struct {
	info  tensor.Info
	bytes []byte
}

// inBlocks returns a matrix of type d of normal values, 4,093 blocks of them again and again; bfloat16 likewise.
func inBlocks(t *testing.T, d tensor.DType, rows, cols int) device.Source {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(d)))
	values := make([]float32, 4093*max(256, d.BlockLen()))
	for i := range values {
		values[i] = float32(rng.NormFloat64() / 50)
	}
	s := table{tensor.Info{Name: "w", DType: d, Shape: []int{rows, cols}}, make([]byte, int(d.RowBytes(len(values))))}
	s.info.Size = int64(rows) * d.RowBytes(cols)
	if d.IsFloat() {
		tensor.Narrow(s.bytes, values, d)
	} else if err := quant.Quantize(s.bytes, values, d); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s table) Info() tensor.Info { return s.info }

func (s table) ReadRows(dst []byte, lo, hi int) error {
	at := lo * int(s.info.DType.RowBytes(s.info.Cols())) % len(s.bytes)
	for len(dst) > 0 {
		n := copy(dst, s.bytes[at:])
		dst, at = dst[n:], 0
	}
	return nil
}
