package distill

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
)

// What a training forward keeps is what the configuration says.
func TestActivationBytes(t *testing.T) {
	d := newCPU(t)
	s := d.NewStream()
	f := openModel(t, goldens+"/qwen2/tied_gqa/student")
	m := loadStudent(t, d, s, goldens+"/qwen2/tied_gqa/student")
	const rows, seqLen = 64, 32 // many positions, so that rounding of each tensor does not count
	b := trajectoryBatch(make([]int32, rows*(seqLen+1)), 0, rows, seqLen)
	db := model.NewBatch(d, rows, seqLen)
	db.Load(s, b, rows)
	saved := m.Forward(s, db.Tokens, model.RecomputeNone)
	now, _ := d.Memory()
	got, want := now[device.Activations], rows*seqLen*f.Config.ActivationBytes()
	if got < want || float64(got) > 1.25*float64(want) { // temps are rounded up by at most a quarter
		t.Errorf("%d bytes kept, the configuration says %d", got, want)
	}
	saved.ReleaseTo(s)
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A step that cannot fit is refused before anything is written, with the largest batch that could.
func TestTooLargeSteps(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rows":         func(c *Config) { c.BatchSize = 100_000_000 },
		"accumulation": func(c *Config) { c.GradAccum = 1_000_000_000_000 },
		"both":         func(c *Config) { c.BatchSize, c.GradAccum = 1<<31, 1<<33 },
	} {
		c := tinyConfig(t)
		change(&c)
		_, _, err := runOnce(t, c, 0, 0)
		if fault.KindOf(err) != fault.Memory || !strings.Contains(fmt.Sprint(err), "step") {
			t.Errorf("%s: error %v, want one of kind memory", name, err)
		}
	}
}
