//go:build vulkan && card

package vulkan

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"apr/device"
	"apr/tensor"
)

// TestRates times, on a card, products of float32 at the shapes of models and products of one row with quantised
// matrices. Each line of its output is one JSON object; APR_RATES names a file for them.
func TestRates(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	out := os.Stdout
	if name := os.Getenv("APR_RATES"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		out = f
	}
	for _, s := range []struct {
		name    string
		m, n, k int
	}{
		{"cube", 4096, 4096, 4096}, {"0.5B gate+up", 2048, 9728, 896}, {"0.5B down", 2048, 896, 4864},
		{"0.5B qkv", 2048, 1152, 896}, {"0.5B head", 1024, 151936, 896}, {"1.5B gate+up", 2048, 17920, 1536},
		{"1.5B down", 2048, 1536, 8960}, {"gosrc", 512, 960, 320},
	} {
		for _, wide := range []bool{true, false} {
			d.wide = wide
			for _, op := range []string{"nt", "nn", "tn"} {
				if !wide && op != "nt" {
					continue
				}
				seconds, err := timeProduct(d, op, s.m, s.n, s.k)
				if err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
				report(out, map[string]any{"what": "gemm", "shape": s.name, "m": s.m, "n": s.n, "k": s.k, "op": op, "wide": wide,
					"ms": seconds * 1e3, "tflops": 2 * float64(s.m) * float64(s.n) * float64(s.k) / seconds / 1e12})
			}
		}
	}
	d.wide = true
	for _, s := range []struct {
		name string
		n, k int
	}{
		{"1.5B gate+up", 17920, 1536}, {"1.5B down", 1536, 8960}, {"1.5B o", 1536, 1536}, {"1.5B head", 151936, 1536},
		{"7B gate+up", 37888, 3584},
	} {
		for _, typ := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0, tensor.BF16} {
			seconds, bytes, err := timeRow(d, typ, s.n, s.k)
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			report(out, map[string]any{"what": "row", "shape": s.name, "n": s.n, "k": s.k, "type": typ.String(),
				"us": seconds * 1e6, "GBps": float64(bytes) / seconds / 1e9})
		}
	}
}

func report(out *os.File, line map[string]any) {
	b, _ := json.Marshal(line) // numbers and words
	fmt.Fprintf(out, "%s\n", b)
}

// repeat returns the seconds that f takes, of as many as fill a quarter of a second, after a first one.
func repeat(s *Stream, f func()) (float64, error) {
	n := 1
	for {
		start := time.Now()
		for range n {
			f()
		}
		if _, err := s.Wait(context.Background()); err != nil {
			return 0, err
		}
		took := time.Since(start).Seconds()
		if took > 0.2 {
			return took / float64(n), nil
		}
		n = max(2*n, min(4*n, int(0.3*float64(n)/max(took, 1e-4))))
	}
}

func timeProduct(d *Device, op string, m, n, k int) (float64, error) {
	s := newStream(d)
	x, w, y := s.Temp("x", device.Scratch, tensor.F32, m, k), s.Temp("w", device.Scratch, tensor.F32, n, k),
		s.Temp("y", device.Scratch, tensor.F32, m, n)
	defer s.Release(x, w, y)
	for _, t := range []device.Tensor{x, w, y} {
		s.Zero(t)
	}
	return repeat(s, func() {
		switch op {
		case "nt":
			s.MatMul(y, x, d.Frozen(w), device.Tensor{}, false)
		case "nn":
			s.MatMulInputGrad(x, y, d.Frozen(w), false)
		case "tn":
			s.MatMulWeightGrad(w, device.Tensor{}, y, x)
		}
	})
}

// timeRow goes through copies of a matrix that together are larger than caches.
func timeRow(d *Device, typ tensor.DType, n, k int) (seconds float64, bytes int64, err error) {
	s := newStream(d)
	src := source{tensor.Info{Name: "w", DType: typ, Shape: []int{n, k}}, make([]byte, n*int(typ.RowBytes(k)))}
	src.info.Size = int64(len(src.data))
	copies := max(1, int(400<<20/src.info.Size))
	var ws []device.Weight
	defer func() { d.Discard(ws...) }()
	for range copies {
		w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}})
		if err != nil {
			return 0, 0, err
		}
		ws = append(ws, w)
	}
	x, y := s.Temp("x", device.Scratch, tensor.F32, 1, k), s.Temp("y", device.Scratch, tensor.F32, 1, n)
	defer s.Release(x, y)
	s.Zero(x)
	seconds, err = repeat(s, func() {
		for _, w := range ws {
			s.MatMul(y, x, w, device.Tensor{}, false)
		}
	})
	return seconds / float64(copies), src.info.Size, err
}
