package distill

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/disk"
	"apr/internal/fault"
	runlog "apr/run/log"
	"apr/run/watch"
)

// slowDevice is a device whose streams take their time: before each Wait, pause is called with its number.
type slowDevice struct {
	device.Device
	pause func(wait int)
}

type slowStream struct {
	device.Stream
	d     *slowDevice
	waits int
}

func (d *slowDevice) NewStream() device.Stream {
	return &slowStream{Stream: d.Device.NewStream(), d: d}
}

func (s *slowStream) Wait(ctx context.Context) (device.Scalars, error) {
	s.waits++
	s.d.pause(s.waits)
	return s.Stream.Wait(ctx)
}

// runOn executes c on a device that pauses.
func runOn(t *testing.T, c Config, pause func(int)) error {
	t.Helper()
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := Start(context.Background(), c, &slowDevice{d, pause}, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.Execute(context.Background())
	return err
}

// A device that hangs in the fourth step is reported with the step, the stack of who waits, and within its limit; the
// last checkpoint is intact.
func TestHungDevice(t *testing.T) {
	c := tinyConfig(t)
	c.CheckpointEvery = 2
	stalled, release := make(chan watch.Report, 1), make(chan int)
	c.Watch = watch.Start(watch.Options{Timeout: 1200 * time.Millisecond, Stalled: func(r watch.Report) { stalled <- r; close(release) }})
	defer c.Watch.Close()
	hung := time.Now()
	err := runOn(t, c, func(n int) {
		if n == 4 {
			hung = time.Now()
			<-release
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r := <-stalled
	if took := time.Since(hung); took > 10*time.Second || r.Idle < 1200*time.Millisecond {
		t.Errorf("reported after %v without progress, %v in all", r.Idle, took)
	}
	if r.Phase != "leg student" || r.Doing != "step 3 of leg student" || r.Steps != 3 ||
		!strings.Contains(string(r.Stacks), "slowStream).Wait") {
		t.Errorf("doing %q after %d steps; stacks:\n%.2000s", r.Doing, r.Steps, r.Stacks)
	}
	dir := checkpoints{dir: filepath.Join(c.Output, "checkpoints"), keep: 2, disk: disk.OS{}}
	if st, _, skipped, err := dir.newestOf(dir.verify); err != nil || len(skipped) > 0 || st.Step < 2 {
		t.Errorf("step %d, skipped %v, %v", st.Step, skipped, err)
	}
}

// The control: a device that is slow, but goes on, is left alone.
func TestSlowDeviceIsNotHung(t *testing.T) {
	c := tinyConfig(t)
	stalled := make(chan watch.Report, 1)
	c.Watch = watch.Start(watch.Options{Timeout: 1200 * time.Millisecond, Stalled: func(r watch.Report) { stalled <- r }})
	defer c.Watch.Close()
	if err := runOn(t, c, func(int) { time.Sleep(200 * time.Millisecond) }); err != nil { // 8 steps: longer than the limit
		t.Fatal(err)
	}
	select {
	case r := <-stalled:
		t.Errorf("stopped: %s", r)
	default:
	}
}

// A step that is not finite is named with its rows and the tensor, in the error and in the run's events; the weights
// are those before, and nothing is checkpointed after it.
func TestNonFiniteStepIsNamed(t *testing.T) {
	c := tinyConfig(t)
	c.LR, c.Steps, c.MaxGradNorm, c.AdamW.WeightDecay, c.CheckpointEvery = 1e30, 12, 0, 0, 1
	_, q, err := runOnce(t, c, 0, 0)
	if fault.KindOf(err) != fault.Diverged || !strings.Contains(err.Error(), "rows [") || !strings.Contains(err.Error(), "first in ") {
		t.Fatalf("error %v", err)
	}
	first := 0
	for ; q.steps[first].Finite; first++ {
	}
	b, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(b)) {
		var e struct {
			Name   string
			Detail struct {
				Step   int
				Rows   []int
				Tensor string
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err == nil && e.Name == "non-finite step" {
			if e.Detail.Step != first+named || len(e.Detail.Rows) != c.Rows() || e.Detail.Tensor == "" {
				t.Errorf("event %+v", e)
			}
			named++
		}
	}
	if named != maxRefused {
		t.Errorf("%d events, want %d", named, maxRefused)
	}
	dir := checkpoints{dir: filepath.Join(c.Output, "checkpoints"), keep: 2, disk: disk.OS{}}
	if st, _, _, err := dir.newestOf(dir.verify); err != nil || st.Step != first {
		t.Errorf("the last checkpoint is after %d steps, the first bad one was step %d (%v)", st.Step, first, err)
	}
}

// Weights and moments are untouched by a step whose gradient is not finite.
func TestNonFiniteStepChangesNothing(t *testing.T) {
	b := unevenBatch()
	tr := tinyTrainer(t, b, device.LossSpec{Alpha: 0.5, Temperature: 1})
	apply(t, tr, b)
	p := tr.Student.Params()[0]
	host := make([]float32, p.Value.Rows*p.Value.Cols)
	if err := tr.stream.Download(host, p.Value); err != nil {
		t.Fatal(err)
	}
	host[b.Tokens[0]*int32(p.Value.Cols)] = float32(math.Inf(1))
	tr.stream.Upload(p.Value, host)
	tr.stream.RefreshWeight(p)
	before, m := get(t, tr, value), get(t, tr, func(p *device.Param) device.Tensor { return p.M })
	rec, err := tr.Apply(context.Background(), b)
	if err == nil || rec.Finite || rec.Bad == "" {
		t.Fatalf("record %+v, error %v", rec, err)
	}
	for name, was := range before {
		for i, x := range get(t, tr, value)[name] {
			if math.Float32bits(x) != math.Float32bits(was[i]) {
				t.Fatalf("%s[%d] changed from %g to %g", name, i, was[i], x)
			}
		}
	}
	for name, was := range m {
		for i, x := range get(t, tr, func(p *device.Param) device.Tensor { return p.M })[name] {
			if x != was[i] {
				t.Fatalf("moment of %s[%d] changed", name, i)
			}
		}
	}
}
