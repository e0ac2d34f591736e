//go:build vulkan

package vulkan

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"apr/device"
	"apr/device/devicetest"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// TestSplit: with bindings of 80 KiB, operations on larger tensors are split by rows, and the suite still passes.
func TestSplit(t *testing.T) {
	d := open(t, Options{Binding: 80 << 10})
	defer d.Close()
	tried := map[string]int{}
	for _, c := range devicetest.Cases() {
		group, _, _ := strings.Cut(c.Name, "/")
		wide := strings.Contains(c.Name, "5000") || strings.Contains(c.Name, "32768") || group == "weight" ||
			group == "repeat" || group == "maps"
		if strings.HasSuffix(c.Name, "/dense") || wide || tried[group] == 12 {
			continue
		}
		tried[group]++
		if err := c.Check(d); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for _, group := range []string{"matmul", "embed", "attention", "loss", "gather", "rmsnorm", "rotary"} {
		if tried[group] == 0 {
			t.Errorf("no case of %s was tried", group)
		}
	}
}

// source is a stored matrix.
type source struct {
	info tensor.Info
	data []byte
}

func (s source) Info() tensor.Info { return s.info }

func (s source) ReadRows(dst []byte, lo, hi int) error {
	n := int(s.info.DType.RowBytes(s.info.Cols()))
	copy(dst, s.data[lo*n:hi*n])
	return nil
}

// TestBlocksBitForBit: rows of blocks decode to the bits of package quant, of random bytes with every scale.
func TestBlocksBitForBit(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	s := newStream(d)
	rng := rand.New(rand.NewPCG(1, 2))
	const rows, cols = 40, 768
	for _, typ := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.Q8_0, tensor.F16, tensor.BF16} {
		src := source{tensor.Info{Name: "w", DType: typ, Shape: []int{rows, cols}}, make([]byte,
			rows*int(typ.RowBytes(cols)))}
		src.info.Size = int64(len(src.data))
		for i := range src.data {
			src.data[i] = byte(rng.Uint32())
		}
		tame(src.data, typ)
		w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}})
		if err != nil {
			t.Fatal(err)
		}
		want, got, ids := make([]float32, rows*cols), make([]float32, rows*cols), make([]int32, rows)
		if typ.IsFloat() {
			tensor.Widen(want, src.data, typ)
		} else {
			quant.Dequantize(want, src.data, typ)
		}
		for i := range ids {
			ids[i] = int32(i)
		}
		it, y := s.Temp("ids", device.Batch, tensor.I32, rows, 1), s.Temp("y", device.Activations, tensor.F32, rows, cols)
		s.UploadInts(it, ids)
		s.Embed(y, w, it)
		if err := s.Download(got, y); err != nil {
			t.Fatal(err)
		}
		s.Release(it, y)
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("%v: value %d is %g, want %g", typ, i, got[i], want[i])
			}
		}
	}
}

// tame makes exponents of halves finite.
func tame(data []byte, typ tensor.DType) {
	at := map[tensor.DType][]int{tensor.Q4_K: {1, 3}, tensor.Q6_K: {209}, tensor.Q8_0: {1}, tensor.F16: {1},
		tensor.BF16: {1}}[typ]
	for b := 0; b < len(data); b += typ.BlockBytes() {
		for _, i := range at {
			data[b+i] &^= 0x40
		}
	}
}

// TestDiscard: a matrix that is given back leaves no slab, and the peak begins anew.
func TestDiscard(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	now, _ := d.Memory()
	slabs := len(d.slabs)
	const rows, cols = 4096, 4096 // longer than a slab
	src := source{tensor.Info{Name: "w", DType: tensor.Q4_K, Shape: []int{rows, cols}}, make([]byte, rows*cols/256*144)}
	src.info.Size = int64(len(src.data))
	w, err := d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights,
		Parts: []device.Source{src, src, src, src}})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.slabs) != slabs+1 {
		t.Errorf("%d slabs, want one more than %d", len(d.slabs), slabs)
	}
	d.Discard(w)
	after, peak := d.Memory()
	c := device.TeacherWeights
	if fmt.Sprint(after[c], peak[c], now[c]) != "0 0 0" || len(d.slabs) != slabs {
		t.Errorf("%v held, %v at most, %d slabs", after, peak, len(d.slabs))
	}
}

// TestStreams: 16 goroutines with streams of their own give the bits of one.
func TestStreams(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	const n = 96
	work := func() ([]float32, error) {
		s := newStream(d)
		x := make([]float32, n*n)
		for i := range x {
			x[i] = float32(i%13) - 6
		}
		a, b := s.Temp("a", device.Activations, tensor.F32, n, n), s.Temp("b", device.Activations, tensor.F32, n, n)
		defer s.Release(a, b)
		for range 3 {
			s.Upload(a, x)
			s.MatMul(b, a, d.Frozen(a), device.Tensor{}, false)
			s.Add(b, a)
		}
		got := make([]float32, n*n)
		if err := s.Download(got, b); err != nil {
			return nil, err
		}
		_, err := s.Wait(context.Background())
		return got, err
	}
	want, err := work()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			got, err := work()
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("another stream gives other bits (%v)", err)
			}
		})
	}
	all.Wait()
}

// TestRefusals: what no adapter has, and what this one has not.
func TestRefusals(t *testing.T) {
	if _, err := Open(Options{Adapter: "no such card"}); fault.KindOf(err) != fault.Unavailable ||
		!strings.Contains(err.Error(), "found 0: ") {
		t.Errorf("%v, want one that names what is there", err)
	}
	d := open(t, Options{Binding: 8 << 10})
	defer d.Close()
	wide := source{info: tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{2, 4096}, Size: 2 * 4 * 4096},
		data: make([]byte, 2*4*4096)}
	_, err := d.Weight(device.WeightSpec{Name: "w", Parts: []device.Source{wide}})
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(fmt.Sprint(err), "longer than") {
		t.Errorf("%v, want a refusal of a row that no binding spans", err)
	}
}

// A program's second device compiles nothing that the first one's cache has; nothing here can tell but the file.
func TestPipelineCache(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		d := open(t, Options{CacheDir: dir})
		if n := d.Compiled(); n == 0 || n > len(kernel.Manifest().Kernels) {
			t.Errorf("%d pipelines", n)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
