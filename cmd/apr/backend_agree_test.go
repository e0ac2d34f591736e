package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/device/vulkan"
	"apr/device/vulkan/driver"
	"apr/internal/fault"
)

// planted is a device that says it is Vulkan's and has an error.
type planted struct {
	device.Device
	make func(device.Stream) device.Stream
}

func (p planted) Info() device.Info {
	i := p.Device.Info()
	i.Kind, i.Name = "vulkan", "Planted Adapter"
	return i
}

func (p planted) NewStream() device.Stream { return p.make(p.Device.NewStream()) }

// decodes is wrong where one position reads the keys of earlier ones, from the third layer of a step on.
type decodes struct {
	device.Stream
	layer int
}

func (b *decodes) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	if q.Rows == 1 {
		if b.layer++; b.layer > 2 {
			a.Scale = 1
		}
	}
	b.Stream.Attention(o, lse, q, k, v, a)
}

// idling computes no products, and is fast.
type idling struct{ device.Stream }

func (idling) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {}

// TestPlantedDevice: a Vulkan device that computes the model wrongly is refused through the command, by layer
// and operation; auto goes on with the CPU and says why.
func TestPlantedDevice(t *testing.T) {
	adapters, opens := vulkanAdapters, openVulkan
	t.Cleanup(func() { vulkanAdapters, openVulkan = adapters, opens })
	vulkanAdapters = func() (string, []vulkan.Adapter, error) {
		return "planted", []vulkan.Adapter{{Adapter: driver.Adapter{Name: "Planted Adapter", Type: driver.Discrete}}}, nil
	}
	for _, tt := range []struct {
		name, backend string
		exit          int
		want          []string
		make          func(device.Stream) device.Stream
	}{
		{"right", "vulkan", 0, nil, func(s device.Stream) device.Stream { return s }},
		{"wrong in decoding", "vulkan", 9, []string{"Planted Adapter computes this model wrongly: at decoding step 1",
			"the first operation that differs is layer 2, Attention"},
			func(s device.Stream) device.Stream { return &decodes{Stream: s} }},
		{"auto", "auto", 0, []string{"the GPU is not used: Planted Adapter computes this model wrongly: at position 0",
			"layer 0, MatMul (self_attn.q_proj.weight)"}, func(s device.Stream) device.Stream { return idling{s} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			openVulkan = func(vulkan.Options) (device.Device, error) {
				d, err := cpu.New(cpu.Options{})
				return planted{d, tt.make}, err
			}
			var out, errs bytes.Buffer
			args := []string{"run", "../../testdata/models/gosrc", "func main", "--max-tokens", "2", "--backend", tt.backend}
			code := run(args, strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
			if code != tt.exit || (code == 0) != (out.Len() > 0) {
				t.Errorf("exit %d, want %d\n%s%s", code, tt.exit, out.String(), errs.String())
			}
			for _, want := range tt.want {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("%s\nlacks %q", errs.String(), want)
				}
			}
		})
	}
}

// dies is a stream of a device that is lost at the fifth update.
type dies struct {
	device.Stream
	updates *int
}

func (b dies) AdamW(params []*device.Param, a device.AdamW) {
	*b.updates++
	b.Stream.AdamW(params, a)
}

func (b dies) Wait(ctx context.Context) (device.Scalars, error) {
	sc, err := b.Stream.Wait(ctx)
	if *b.updates >= 5 {
		err = fault.New(fault.Hung, "Planted Adapter was lost").WithID("E-VULKAN-030")
	}
	return sc, err
}

// TestLostDevice: a run whose device is lost ends with exit 22, and goes on from its last checkpoint.
func TestLostDevice(t *testing.T) {
	opens := openVulkan
	t.Cleanup(func() { openVulkan = opens })
	dir := t.TempDir()
	heldOut := filepath.Join(dir, "held-out.jsonl")
	text := `{"text":"package main\n\nfunc main() {\n` + strings.Repeat(`\tprintln(1, 2, 3)\n`, 12) + `}\n"}`
	if err := os.WriteFile(heldOut, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	train := func(make func(device.Stream) device.Stream, more ...string) (int, string) {
		openVulkan = func(vulkan.Options) (device.Device, error) {
			d, err := cpu.New(cpu.Options{})
			return planted{d, make}, err
		}
		var out, errs bytes.Buffer
		args := append([]string{"distill", "../../examples/gosrc/distill.yaml", "-o", filepath.Join(dir, "run"),
			"--steps", "6",
			"--seq-len", "16", "--batch-size", "1", "--warmup-steps", "1", "--control", "none", "--samples", "0", "--eval-every",
			"0", "--eval-data", heldOut, "--checkpoint-every", "2", "--backend", "vulkan"}, more...)
		code := run(args, strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + dir})
		return code, errs.String()
	}
	code, errs := train(func(s device.Stream) device.Stream { return dies{s, new(int)} })
	if code != 22 || !strings.Contains(errs, "Planted Adapter was lost") {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if code, errs = train(func(s device.Stream) device.Stream { return s }, "--resume"); code != 0 ||
		!strings.Contains(errs, "step 4") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
