package distill

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/model/modeltest"
	"apr/quant"
	runlog "apr/run/log"
	"apr/tensor"
)

// fp8 is a CPU that takes matrices in 8-bit floats by rounding their values to some bits of mantissa, as a GPU of
// compute capability 9.0 does to three.
type fp8 struct {
	*cpu.Device
	bits int
}

func (d fp8) Weight(spec device.WeightSpec) (device.Weight, error) {
	if spec.Form.FP8 {
		spec.Form.FP8 = false
		for i, p := range spec.Parts {
			spec.Parts[i] = coarse{p, d.bits}
		}
	}
	return d.Device.Weight(spec)
}

func (d fp8) Target() dry.Target {
	t := d.Device.Target()
	keep := t.Keep
	t.Keep = func(spec device.WeightSpec) (dry.Kept, error) {
		spec.Form.FP8 = false
		return keep(spec)
	}
	return t
}

// coarse rounds the float32 values of a matrix to some bits of mantissa.
type coarse struct {
	device.Source
	bits int
}

func (c coarse) ReadRows(dst []byte, lo, hi int) error {
	if err := c.Source.ReadRows(dst, lo, hi); err != nil {
		return err
	}
	if d := c.Info().DType; d != tensor.F32 && d != tensor.BF16 {
		return fmt.Errorf("a matrix of %v", d)
	}
	size := c.Info().DType.BlockBytes()
	row := make([]float32, len(dst)/size)
	tensor.Widen(row, dst, c.Info().DType)
	for i, v := range row {
		fraction, exp := math.Frexp(float64(v))
		scale := math.Ldexp(1, c.bits+1)
		row[i] = float32(math.Ldexp(math.Round(fraction*scale)/scale, exp))
	}
	tensor.Narrow(dst, row, c.Info().DType)
	return nil
}

// TestFP8IsGated: a teacher in 8-bit floats runs only if they add less noise than Q4_K, and otherwise nothing is
// written.
func TestFP8IsGated(t *testing.T) {
	for _, tt := range []struct {
		name    string
		bits    int
		measure bool
		allowed bool
	}{
		{"e4m3", 3, true, true}, {"one bit of mantissa", 1, true, false}, {"not measured", 3, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := tinyConfig(t)
			c.TeacherFP8 = true
			open := func() (device.Device, error) {
				d, err := cpu.New(cpu.Options{})
				return fp8{d, tt.bits}, err
			}
			if tt.measure {
				c.OpenDevice = open
			}
			dev, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			r, err := Start(context.Background(), c, dev, &quiet{}, func(*runlog.Manifest) {})
			if r != nil {
				defer r.Close()
			}
			if !tt.allowed {
				if fault.KindOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), "fp8") {
					t.Errorf("got %v, want a refusal of kind invalid", err)
				}
				if _, err := os.Stat(c.Output); !os.IsNotExist(err) {
					t.Errorf("a refused run left %s: %v", c.Output, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n := r.noise
			if n == nil || !(n.KL > 0 && n.KL < n.Limit && n.Limit < 1) || n.Targets == 0 {
				t.Fatalf("measured %+v", n)
			}
			t.Logf("8-bit floats: %.3g nats, Q4_K: %.3g, over %d positions", n.KL, n.Limit, n.Targets)
		})
	}
}

// matrix is a source in memory.
type matrix struct {
	info tensor.Info
	data []byte
}

func (m matrix) Info() tensor.Info { return m.info }
func (m matrix) ReadRows(dst []byte, lo, hi int) error {
	n := int(m.info.DType.RowBytes(m.info.Cols()))
	copy(dst, m.data[lo*n:hi*n])
	return nil
}

// TestQ4KRounding: values are moved by about what Q4_K moves them, also those of a matrix that is in Q4_K already, and
// rows do not depend on how many are read at a time.
func TestQ4KRounding(t *testing.T) {
	const rows, cols = 5, 512
	values := make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(math.Sin(float64(i)*1.7) * math.Cos(float64(i*i)*0.3))
	}
	plain := matrix{tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{rows, cols}, Size: 4 * rows * cols}, make([]byte, 4*rows*cols)}
	tensor.Narrow(plain.data, values, tensor.F32)
	blocks := matrix{tensor.Info{Name: "w", DType: tensor.Q4_K, Shape: []int{rows, cols}}, make([]byte, rows*int(tensor.Q4_K.RowBytes(cols)))}
	blocks.info.Size = int64(len(blocks.data))
	if err := quant.Quantize(blocks.data, values, tensor.Q4_K); err != nil {
		t.Fatal(err)
	}
	decoded := make([]float32, len(values))
	quant.Dequantize(decoded, blocks.data, tensor.Q4_K)
	own := distance(decoded, values)
	for name, c := range map[string]struct {
		m      matrix
		from   []float32
		blocks bool
	}{"float32": {plain, values, false}, "Q4_K": {blocks, decoded, false}, "Q4_K kept in blocks": {blocks, decoded, true}} {
		contracttest.Cases(t, 1)
		s := newQ4K(c.m, c.blocks)
		info := s.Info()
		if want := map[bool]tensor.DType{false: tensor.F32, true: tensor.Q8_0}[c.blocks]; info.DType != want || info.Size != rows*want.RowBytes(cols) {
			t.Fatalf("%s: read as %v of %d bytes", name, info.DType, info.Size)
		}
		all, one := make([]byte, info.Size), make([]byte, info.DType.RowBytes(cols))
		if err := s.ReadRows(all, 0, rows); err != nil {
			t.Fatal(err)
		}
		if err := s.ReadRows(one, 3, 4); err != nil || !bytes.Equal(one, all[3*len(one):4*len(one)]) {
			t.Errorf("%s: a row read alone differs, %v", name, err)
		}
		got := make([]float32, len(values))
		if c.blocks {
			quant.Dequantize(got, all, info.DType)
		} else {
			for i := range got {
				got[i] = math.Float32frombits(binary.LittleEndian.Uint32(all[4*i:]))
			}
		}
		if d := distance(got, c.from); !(d > own/2 && d < 2*own) {
			t.Errorf("%s: moved by %g, Q4_K moves by %g", name, d, own)
		}
	}
}

// distance is the root mean square of a − b.
func distance(a, b []float32) float64 {
	var sum float64
	for i := range a {
		sum += float64(a[i]-b[i]) * float64(a[i]-b[i])
	}
	return math.Sqrt(sum / float64(len(a)))
}

// TestCPURefusesFP8: a device without products in 8-bit floats says so.
func TestCPURefusesFP8(t *testing.T) {
	f := modeltest.Open(t, "../testdata/models/gosrc")
	d := modeltest.CPU(t, cpu.Options{})
	if _, err := model.LoadFrozenAs(d, f, device.TeacherWeights, device.Form{FP8: true}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v", err)
	}
}
