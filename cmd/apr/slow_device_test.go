//go:build !windows

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/device"
	"apr/device/cpu"
	"apr/device/vulkan"
)

func init() { programs["apr-on-a-slow-device"] = onSlowDevice }

// hangsFrom, if it is set, makes the slow device hang for good.
const hangsFrom = "APR_TEST_DEVICE_HANGS"

// onSlowDevice is apr with a Vulkan device whose products of many rows take long, or of which the tenth never ends.
func onSlowDevice() {
	openVulkan = func(vulkan.Options) (device.Device, error) {
		d, err := cpu.New(cpu.Options{})
		if err != nil {
			return nil, err
		}
		products := 0
		return slow{planted{d, func(s device.Stream) device.Stream { return &slowProducts{s, &products} }}, d}, nil
	}
	main()
}

// slow is a planted device with the pulse of the device behind it.
type slow struct {
	planted
	device.Pulse
}

type slowProducts struct {
	device.Stream
	products *int
}

func (s *slowProducts) pause(rows int) {
	if rows < 256 { // a step's, or the comparison's with the CPU
		return
	}
	if *s.products++; *s.products == 10 && os.Getenv(hangsFrom) != "" {
		select {}
	}
	time.Sleep(100 * time.Millisecond)
}

func (s *slowProducts) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	s.pause(x.Rows)
	s.Stream.MatMul(y, x, w, bias, add)
}

func (s *slowProducts) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, keep bool) {
	s.pause(x.Rows)
	s.Stream.MatMulGLU(m, gu, x, w, act, keep)
}

// TestSlowEvaluation: a batch of held-out text that takes a device longer than the limit is no stall while the device
// ends one operation after the other. A device that hangs in one is noticed, with its name and the phase.
func TestSlowEvaluation(t *testing.T) {
	l := newLab(t)
	slowly, held := filepath.Join(filepath.Dir(l.apr), "apr-on-a-slow-device"), l.path("held.txt")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("func sub(a, b int) int {\n\treturn a - b\n}\n", 150)
	if err := os.WriteFile(held, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(slowly); err != nil {
		if err := os.Symlink(self, slowly); err != nil {
			t.Fatal(err)
		}
	}
	const limit = 2 * time.Second
	train := func(out string, env ...string) (int, string) {
		c := exec.Command(slowly, "distill", "../../testdata/models/gosrc", "--student-config", l.path("config.json"),
			"-d", l.path("data.txt"), "--eval-data", held, "-o", l.path(out), "--steps", "2", "--batch-size", "1",
			"--seq-len", "16", "--control", "none", "--samples", "0", "--eval-every", "0", "--checkpoint-every", "1",
			"--backend", "vulkan", "--stall-timeout", limit.String())
		c.Env = append(append(os.Environ(), "XDG_CACHE_HOME="+l.dir, "CUDA_VISIBLE_DEVICES=-1"), env...)
		b, err := c.CombinedOutput()
		return code(err), string(b)
	}
	start := time.Now()
	if exit, text := train("slow"); exit != 0 {
		t.Errorf("exit %d, want 0\n%s", exit, text)
	}
	if took := time.Since(start); took < 2*limit {
		t.Errorf("it took %v: no batch was slow", took)
	}
	if exit, text := train("hung", hangsFrom+"=1"); exit != 22 || !strings.Contains(text, "evaluating on held-out text") {
		t.Errorf("exit %d, want 22\n%.3000s", exit, text)
	}
	contains(t, l.path("hung", "stall.txt"), "phase: evaluating on held-out text\n",
		"device: vulkan (Planted Adapter), ", "slowProducts).pause")
	contains(t, l.path("hung", "events.jsonl"), `"phase":"evaluating on held-out text"`,
		`"device":"vulkan (Planted Adapter), `)
}
