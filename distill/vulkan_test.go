//go:build vulkan

package distill

import (
	"cmp"
	"context"
	"os"
	"testing"

	"apr/device"
	"apr/device/vulkan"
	"apr/model"
	"apr/plan"
)

// TestVulkan holds the Vulkan device, on Mesa's llvmpipe, to the tolerances of the CPU, and eight steps of the
// trajectory to 10⁻⁴ of each loss.
func TestVulkan(t *testing.T) {
	testDevice = func(t *testing.T) device.Device {
		t.Helper()
		d, err := vulkan.Open(vulkan.Options{Adapter: cmp.Or(os.Getenv("APR_TEST_ADAPTER"), "llvmpipe")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	t.Cleanup(func() { testDevice = newCPU })
	steps := 8 // of 40, which a card has time for
	if os.Getenv("APR_TEST_ADAPTER") != "" {
		steps = 40
	}
	t.Run("qwen2", TestGoldenQwen2)
	t.Run("memory", vulkanMemory)
	t.Run("trajectory", func(t *testing.T) { goldenTrajectory(t, 1e-4, steps) })
}

// vulkanMemory: what a dry step plans is taken at once, and the step needs no more.
func vulkanMemory(t *testing.T) {
	d := testDevice(t).(*vulkan.Device)
	c := tinyConfig(t)
	in, err := openInputs(context.Background(), c, d, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	c.SeqLen, c.GradAccum = 16, 2
	s := plan.Setting{BatchSize: 3, MicroRows: 2, ChunkRows: 20, Recompute: model.RecomputeNone}
	rec, err := in.dryRun(c, d.Target).Record(s)
	if err == nil {
		err = d.Prepare(rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	planned, taken := rec.Total(), d.Held()
	if taken < planned || taken >= planned+256 {
		t.Errorf("%d bytes planned, %d taken", planned, taken)
	}
	if got := peakOfStep(t, d, in, c, s); len(got) == 0 || d.Held() != taken {
		t.Errorf("the step took %d bytes more than the %d planned", d.Held()-taken, planned)
	}
}
