//go:build gpu || emulate

package distill

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/model"
	"apr/plan"
	runlog "apr/run/log"
)

// TestCUDAOwnRows: on a GPU the sampler and the step agree as far as bfloat16 allows, by either estimator, and as far
// as float32 does in float32; the same run gives the same student again.
func TestCUDAOwnRows(t *testing.T) {
	openEmulator(t)
	for _, v := range []struct {
		compute            cuda.Compute
		sampled            bool
		mean, nearly, most float64
		times              int
	}{{cuda.F32, false, 1e-5, 1e-4, 1e-4, 1}, {cuda.BF16, true, .01, .1, 1, 2}} {
		var students [][]byte
		for range v.times {
			c := ownConfig(t)
			c.Steps, c.OnPolicy.MaxTokens, c.OnPolicy.Sampled, c.ValFraction = 1, 4, v.sampled, 0
			c.Options = optionsOf(c)
			d, err := cuda.Open(cuda.Options{Compute: v.compute})
			if err != nil {
				t.Fatal(err)
			}
			q := &quiet{}
			r, err := Start(context.Background(), c, d, q, func(*runlog.Manifest) {})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Execute(context.Background()); err != nil {
				t.Fatal(err)
			}
			for _, s := range q.steps {
				o := s.OnPolicy
				if o == nil || !(float64(o.Off) <= v.mean) || !(float64(o.Off999) <= v.nearly) || !(float64(o.OffMost) <= v.most) {
					t.Errorf("%v, step %d: %+v", v.compute, s.Step, o)
				}
			}
			students = append(students, studentBytes(t, c))
			r.Close()
			d.Close()
		}
		if !bytes.Equal(students[0], students[len(students)-1]) {
			t.Errorf("%v: another student the second time", v.compute)
		}
		contracttest.Cases(t, v.times)
	}
}

// scarce is a GPU of which a plan may use so much.
type scarce struct {
	*cuda.Device
	budget int64
}

func (s scarce) Target() dry.Target {
	t := s.Device.Target()
	t.Budget = s.budget
	return t
}

// besideRun trains with rows a step ahead, and returns the student, its steps, and the run's plan.
func besideRun(t *testing.T, c Config, dev device.Device) (student []byte, q *quiet, planned plan.Plan) {
	t.Helper()
	q = &quiet{}
	r, err := Start(context.Background(), c, dev, q, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Execute(context.Background()); err != nil {
		t.Fatal(err)
	}
	return studentBytes(t, c), q, r.Planned()
}

// TestCUDARowsBeside: on a GPU the rows of the next step are written in a queue beside the step, in planned memory,
// where that suffices, and before the step where it does not: the student is the same to the bit.
func TestCUDARowsBeside(t *testing.T) {
	openEmulator(t)
	var students [][]byte
	var rows []runlog.OnPolicy // of each step
	var budget int64
	for _, beside := range []bool{true, false} {
		c := ownConfig(t)
		c.Steps, c.OnPolicy.MaxTokens, c.OnPolicy.Lag, c.ValFraction = 3, 4, 1, 0
		c.OnPolicy.PromptTokens = model.PromptPositions + 2 // so that some are read several at a time
		c.Options = optionsOf(c)
		gpu, err := cuda.Open(cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		dev := device.Device(gpu)
		if !beside {
			dev = scarce{gpu, budget - 1}
		}
		student, q, p := besideRun(t, c, dev)
		students = append(students, student)
		events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
		if err != nil || !strings.Contains(string(events), fmt.Sprintf(`"beside_the_step":%v`, beside)) ||
			!beside && !strings.Contains(string(events), `"why_before":"beside the step it would need`) {
			t.Errorf("beside the step %v: not recorded (%v)", beside, err)
		}
		if late := regexp.MustCompile(`"loads":(\d+)`).FindStringSubmatch(string(events)); late == nil || late[1] != "0" {
			t.Errorf("beside the step %v: loads after the first step: %v", beside, late)
		}
		_, peak := gpu.Memory()
		if p.Memory.Beside != peak[device.Besides] || (p.Memory.Beside > 0) != beside {
			t.Errorf("beside the step %v: %d bytes planned for it, %d taken", beside, p.Memory.Beside, peak[device.Besides])
		}
		if budget == 0 {
			budget = p.Memory.Total
		}
		for _, s := range q.steps {
			if s.OnPolicy == nil || s.OnPolicy.Lag == nil || *s.OnPolicy.Lag != min(1, s.Step) {
				t.Fatalf("step %d: %+v", s.Step, s.OnPolicy)
			}
			if s.Step == 0 && !(float64(s.OnPolicy.Off) <= .01) {
				t.Errorf("step 0: sampler and step differ by %v in the mean", s.OnPolicy.Off)
			}
			o := *s.OnPolicy
			o.MS, o.Lag = 0, nil
			if beside {
				rows = append(rows, o)
			} else if want := rows[s.Step]; !reflect.DeepEqual(o, want) {
				t.Errorf("step %d: %+v written before the step, %+v beside it", s.Step, o, want)
			}
		}
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
		contracttest.Cases(t, 1)
	}
	if !bytes.Equal(students[0], students[1]) {
		t.Error("another student with rows beside the step than before it")
	}
}
