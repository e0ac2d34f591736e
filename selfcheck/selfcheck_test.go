package selfcheck

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
)

func newCPU(t *testing.T, isa string) *cpu.Device {
	t.Helper()
	d, err := cpu.New(cpu.Options{ISA: isa})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// All stages pass here, on the tiny model and on a file, each with a figure and a text.
func TestRun(t *testing.T) {
	for name, file := range map[string]string{"tiny": "", "a file": "../testdata/golden/trajectory/student"} {
		t.Run(name, func(t *testing.T) {
			var seen []string
			got, err := Run(context.Background(), Options{
				Device: newCPU(t, ""), Other: newCPU(t, "generic"), OtherName: "portable code", File: file, Dir: t.TempDir(),
				Progress: func(s string) { seen = append(seen, s) },
			})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Join(seen, ",") != strings.Join(Names(), ",") || len(got) != 10 {
				t.Errorf("stages %v, results %d", seen, len(got))
			}
			for _, s := range got {
				contracttest.Cases(t, 1)
				t.Logf("%-14s %.3g of %.3g, %.2f s: %s", s.Name, s.MaxError, s.Allowed, s.Seconds, s.Detail)
				if !s.OK || s.Detail == "" || s.Hint != "" {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// Logits, texts and devices are compared of a model without a tokenizer, too: its ids are enough.
func TestNoTokenizer(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(folder, os.DirFS("../testdata/golden/trajectory/student")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	got, err := Run(context.Background(), Options{
		Device: newCPU(t, ""), Other: newCPU(t, "generic"), OtherName: "portable code", File: folder, Dir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range got {
		contracttest.Cases(t, 1)
		if s.OK != (s.Name != "tokenise") {
			t.Errorf("%+v", s)
		}
	}
}

// wrong is a device one of whose operations is wrong.
type wrong struct {
	device.Device
	make func(device.Stream) device.Stream
}

func (w wrong) NewStream() device.Stream { return w.make(w.Device.NewStream()) }

type badRotary struct{ device.Stream } // another base

func (b badRotary) Rotate(x device.Tensor, r device.Rotary) {
	other := &device.Frequencies{Inv: slices.Clone(r.Table.Inv), Factor: r.Table.Factor}
	for i := range other.Inv {
		other.Inv[i] *= math.Pow(1.01, -float64(i)/float64(len(other.Inv)))
	}
	r.Table = other
	b.Stream.Rotate(x, r)
}

type badLoss struct{ device.Stream } // temperature forgotten in the gradient and the report

func (b badLoss) Loss(grad, z, t, y device.Tensor, s device.LossSpec) {
	s.Temperature = 1
	b.Stream.Loss(grad, z, t, y, s)
}

type badKL struct{ device.Stream } // the reverse divergence

func (b badKL) Loss(grad, z, t, y device.Tensor, s device.LossSpec) {
	s.Divergence = device.ReverseKL
	b.Stream.Loss(grad, z, t, y, s)
}

type badNorm struct{ device.Stream } // the gradient of a norm's weight is forgotten

func (b badNorm) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	scratch := b.Temp("scratch", device.Scratch, dw.DType, dw.Rows, dw.Cols)
	b.Stream.RMSNormBackward(dx, scratch, dy, x, rstd, w)
	b.Release(scratch)
}

type badAdamW struct{ device.Stream } // no weight decay

func (b badAdamW) AdamW(p []*device.Param, a device.AdamW) {
	a.WeightDecay = 0
	b.Stream.AdamW(p, a)
}

type badCache struct{ device.Stream } // copies nothing into the cache of keys

func (b badCache) Copy(dst, src device.Tensor) {}

type failing struct{ device.Stream }

func (failing) Loss(grad, z, t, y device.Tensor, s device.LossSpec) { panic("broken") }

// Each stage fails for what it is there to find, and says where to look.
func TestStagesCatch(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(device.Stream) device.Stream
		fail string // stages that must fail
	}{
		{"rotary of another base", func(s device.Stream) device.Stream { return badRotary{s} }, "forward gradient step device parity"},
		{"temperature forgotten", func(s device.Stream) device.Stream { return badLoss{s} }, "gradient step"},
		{"divergence reversed", func(s device.Stream) device.Stream { return badKL{s} }, "gradient loss step"},
		{"gradient of a norm forgotten", func(s device.Stream) device.Stream { return badNorm{s} }, "gradient step"},
		{"no weight decay", func(s device.Stream) device.Stream { return badAdamW{s} }, "step"},
		{"cache not filled", func(s device.Stream) device.Stream { return badCache{s} }, "generation"},
		{"an operation panics", func(s device.Stream) device.Stream { return failing{s} }, "gradient loss step checkpoint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			got, err := Run(context.Background(), Options{Device: wrong{newCPU(t, ""), tt.make}, Other: newCPU(t, ""), Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range got {
				must := strings.Contains(" "+tt.fail+" ", " "+s.Name+" ")
				if must && (s.OK || s.Hint == "" || s.Detail == "") {
					t.Errorf("stage %s passes: %+v", s.Name, s)
				}
				if s.Name == "disk" && !s.OK {
					t.Errorf("the disk has nothing to do with it: %+v", s)
				}
			}
		})
	}
}

// What is not there fails the stages that need it, and only those.
func TestMissing(t *testing.T) {
	got, err := Run(context.Background(), Options{Device: newCPU(t, ""), File: "no/such/model", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range got {
		if want := strings.Contains(" gradient loss step checkpoint disk ", " "+s.Name+" "); s.OK != want {
			t.Errorf("stage %s: ok is %v: %s", s.Name, s.OK, s.Detail)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Device: newCPU(t, ""), Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is over: %v", err)
	}
	got, err = Run(context.Background(), Options{Device: newCPU(t, ""), Other: newCPU(t, ""), Dir: "/no/such/dir"})
	if err != nil || got[0].OK || got[9].OK {
		t.Errorf("without a folder: %v, %+v", err, got)
	}
}
