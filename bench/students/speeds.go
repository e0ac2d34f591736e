package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"apr/bench/trial"
)

// speedSettings are what all steps of a log of speeds share.
type speedSettings struct {
	Machine    string `json:"machine"`
	Backend    string `json:"backend"`
	Model      string `json:"model,omitempty"` // measured instead of published shapes
	Rows       int    `json:"batch_size"`
	Length     int    `json:"seq_len"`
	Iterations int    `json:"iterations"`
}

// speedCase is a kind of step to measure, and what it is meant to cost.
type speedCase struct {
	name, shape string
	flags       []string
	against     string  // the step that it is compared with
	part        bool    // what is compared is the student's part
	most        float64 // times what it is compared with
	stateGB     float64 // values, gradients and moments of what trains take at most; 0: not asked
	peakGB      float64 // all device memory; 0: not asked
}

// Shapes of the measured steps. A base of 7B in blocks is planned for 8.2 GiB, 8.8 GB.
const (
	shapeBlocks = "qwen3-0.6b:qwen3-0.6b"
	shapeLoRA   = "1.5b:0.5b"
	shapeQLoRA  = "7b:7b"
)

var speedCases = []speedCase{
	{name: "whole", shape: shapeLoRA, flags: []string{"--profile"}},
	{name: "lora", shape: shapeLoRA, against: "whole", part: true, most: .85, stateGB: .27,
		flags: []string{"--lora", "--profile"}},
	{name: "16 bits", shape: shapeBlocks},
	{name: "blocks", shape: shapeBlocks, flags: []string{"--quantize-aware", "q4_k_m"}, against: "16 bits", most: 1.10},
	{name: "qlora", shape: shapeQLoRA, peakGB: 9,
		flags: []string{"--lora", "--alpha", "0", "--quantize", "q4_k_m", "--memory", "8.2",
			"--iterations", "3", "--warmup", "1"}},
}

// speed is a line of the log: a step, measured.
type speed struct {
	Name   string             `json:"name"`
	Why    string             `json:"why,omitempty"` // it was not measured
	Step   float64            `json:"step_ms,omitempty"`
	Search float64            `json:"search_ms_per_step,omitempty"`
	Phases map[string]float64 `json:"phases_ms,omitempty"`
	State  int64              `json:"state_bytes,omitempty"`
	Peak   int64              `json:"peak_bytes,omitempty"`
	Ops    []operation        `json:"operations,omitempty"`
}

type operation struct {
	Op    string  `json:"op"`
	Calls int     `json:"calls"`
	MS    float64 `json:"ms"`
}

// student is the student's part of a step: all but the teacher's pass and the data.
func (s speed) student() float64 {
	p := s.Phases
	return p["student_forward"] + p["loss"] + p["student_backward"] + p["optimizer"] + p["quantize"] + s.Search
}

// speedRows, speedLength and speedIterations are what figures are for.
const speedRows, speedLength, speedIterations = 8, 1024, 20

// runSpeeds measures all steps that the log lacks, and prints the table.
func (o *options) runSpeeds(ctx context.Context) error {
	if o.Machine == "" {
		o.Machine = trial.Machine()
	}
	set := speedSettings{o.Machine, o.Backend, o.speedsModel, speedRows, speedLength, speedIterations}
	if o.speedsModel != "" {
		set.Rows, set.Length, set.Iterations = 1, 64, 2
	}
	l, err := trial.OpenLog[speedSettings, speed](o.speeds, set)
	if err != nil {
		return err
	}
	clock, ctx, stop := trial.NewClock(ctx, o.limit)
	defer stop()
	_, err = trial.Each(ctx, clock, 1, speedCases, func(ctx context.Context, c speedCase) error {
		if slices.ContainsFunc(l.All(), func(s speed) bool { return s.Name == c.name && s.Why == "" }) {
			return nil
		}
		s, err := o.measure(ctx, set, c)
		if err != nil {
			if ctx.Err() != nil {
				return nil // cut off: it says nothing
			}
			s.Why = trial.Why(err)
		}
		fmt.Fprintf(os.Stderr, "%s: %.1f ms %s\n", c.name, s.Step, s.Why)
		return l.Append(s)
	})
	text, met := speedTable(set, l.All())
	if _, werr := os.Stdout.WriteString(text); werr != nil {
		return errors.Join(err, werr)
	}
	if err == nil && !met {
		err = errors.New("a step costs more than it may, or was not measured")
	}
	return err
}

// measure runs apr bench.
func (o *options) measure(ctx context.Context, set speedSettings, c speedCase) (speed, error) {
	args := []string{"bench", "--shape", c.shape, "--random-weights"}
	if set.Model != "" {
		args = []string{"bench", set.Model, "--kd", set.Model}
	}
	args = append(args, "--backend", set.Backend, "--batch-size", strconv.Itoa(set.Rows),
		"--seq-len", strconv.Itoa(set.Length), "--warmup", "5", "--iterations", strconv.Itoa(set.Iterations),
		"--floor", "0", "--peak-size", "1024", "--json", "--quiet")
	for i := 0; i < len(c.flags); i++ {
		switch f := c.flags[i]; {
		case set.Model != "" && (f == "--quantize" || f == "--memory"): // of shapes, and of their size
			i++
		case f == "--profile" && set.Backend == "cpu": // which always has one
		case f == "--iterations" || f == "--warmup":
			args[slices.Index(args, f)+1] = c.flags[i+1]
			i++
		default:
			args = append(args, f)
		}
	}
	var r struct {
		Step struct {
			Median float64            `json:"median_ms"`
			Search float64            `json:"search_ms_per_step"`
			Phases map[string]float64 `json:"phases_ms"`
		} `json:"step"`
		LoRA struct {
			Parameters int64 `json:"parameters"`
		} `json:"lora"`
		Plan struct {
			Memory struct {
				Gradients, Optimizer int64
			} `json:"memory"`
		} `json:"plan"`
		Peak map[string]int64 `json:"peak_memory"`
		Ops  []operation      `json:"operations"`
	}
	s := speed{Name: c.name}
	if err := trial.Run(ctx, nil, &r, o.apr, args...); err != nil {
		return s, err
	}
	s.Step, s.Search, s.Phases, s.Peak, s.Ops = r.Step.Median, r.Step.Search, r.Step.Phases, r.Peak["device"], r.Ops
	if c.stateGB > 0 {
		s.State = 4*r.LoRA.Parameters + r.Plan.Memory.Gradients + r.Plan.Memory.Optimizer
	}
	return s, nil
}

// speedTable is the table, and whether everything costs what it may.
func speedTable(set speedSettings, all []speed) (string, bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "Steps of %d rows of %d on %s (backend %s), medians of %d.\n\n",
		set.Rows, set.Length, set.Machine, set.Backend, set.Iterations)
	b.WriteString("| student | shapes | step, ms | student's part, ms | compared | wanted | state, GB | device, GB |\n")
	b.WriteString("|---|---|--:|--:|--:|--:|--:|--:|\n")
	met := true
	find := func(name string) (found speed, ok bool) {
		for _, s := range all {
			if s.Name == name && s.Why == "" {
				found, ok = s, true
			}
		}
		return found, ok
	}
	limit := func(x, most float64, format string) string {
		text := fmt.Sprintf(format, x)
		if most > 0 && !(x <= most) {
			met = false
			text += fmt.Sprintf(" (wanted: "+format+")", most)
		}
		return text
	}
	for _, c := range speedCases {
		s, ok := find(c.name)
		if !ok {
			met = false
			fmt.Fprintf(&b, "| %s | %s | not measured |\n", c.name, c.shape)
			continue
		}
		compared, wanted, state := "", "", ""
		shape := c.shape
		if set.Model != "" {
			shape = set.Model
		}
		if other, ok := find(c.against); ok {
			ratio := (s.Step + s.Search) / other.Step
			if c.part {
				ratio = s.student() / other.student()
			}
			compared, wanted = fmt.Sprintf("%.3f", ratio), fmt.Sprintf("%.2f", c.most)
			met = met && ratio <= c.most
		}
		if c.stateGB > 0 {
			state = limit(float64(s.State)/1e9, c.stateGB+.005, "%.2f")
		}
		fmt.Fprintf(&b, "| %s | %s | %.1f | %.1f | %s | %s | %s | %s |\n", c.name, shape, s.Step+s.Search, s.student(),
			compared, wanted, state, limit(float64(s.Peak)/1e9, c.peakGB, "%.1f"))
	}
	for _, s := range all {
		if s.Why != "" {
			fmt.Fprintf(&b, "\n%s was not measured: %s\n", s.Name, s.Why)
		}
	}
	return b.String(), met
}
