package selfcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apr/device"
	"apr/distill"
	"apr/optim"
	runlog "apr/run/log"
)

// checkpoint distils the tiny student four steps at once, and two and two with a checkpoint between. The figure counts
// files of the two students that differ by a byte.
func (c *check) checkpoint(ctx context.Context) (figure, error) {
	if c.tinyT == nil || c.tinyS == nil {
		return figure{}, errNoModel
	}
	data := filepath.Join(c.Dir, "data.txt")
	if err := os.WriteFile(data, []byte(strings.Repeat(strings.Join(texts[:3], " "), 20)), 0o600); err != nil {
		return figure{}, err
	}
	whole, err := c.distil(ctx, data, "whole", 0, "")
	if err != nil {
		return figure{}, err
	}
	if _, err := c.distil(ctx, data, "parts", 2, ""); err != nil {
		return figure{}, err
	}
	parts, err := c.distil(ctx, data, "parts", 0, distill.ResumeAuto)
	if err != nil {
		return figure{}, err
	}
	if parts.ResumedFrom == "" || parts.StepsCompleted != 4 || whole.StepsCompleted != 4 {
		return figure{}, fmt.Errorf("the run was not continued: %d and %d steps, resumed from %q", whole.StepsCompleted, parts.StepsCompleted, parts.ResumedFrom)
	}
	weights := filepath.Join("student", "model.safetensors")
	if whole.Outputs[weights] == "" {
		return figure{}, errors.New("no student was written")
	}
	start, err := c.tinyS.WeightsSHA256()
	if err != nil {
		return figure{}, err
	}
	different := 0
	for _, name := range []string{weights, filepath.Join("student", "config.json"), filepath.Join("student", "tokenizer.json")} {
		if whole.Outputs[name] != parts.Outputs[name] {
			different++
		}
	}
	return figure{float64(different), 0, fmt.Sprintf("files of a student of 4 steps and of one of 2 and 2 that differ; begun from %s…", start[:8])}, nil
}

func (c *check) distil(ctx context.Context, data, name string, maxSteps int, resume string) (*distill.Outcome, error) {
	r, err := distill.Start(ctx, distill.Config{
		Teacher: c.tinyT.Path, Student: c.tinyS.Path, Data: []string{data}, ChatTemplate: "auto", AssistantOnly: true, Packing: true, Shuffle: true,
		Output: filepath.Join(c.Dir, name), Resume: resume, Loss: device.LossSpec{Alpha: 0.5, Temperature: 1},
		Steps: 4, MaxSteps: maxSteps, BatchSize: 2, GradAccum: 2, SeqLen: 32, LR: 1e-3, WarmupSteps: 1, Schedule: optim.Cosine, MinLRRatio: 0.1,
		AdamW: device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, MaxGradNorm: 1, Seed: 1, KeepCheckpoints: 2, Build: "apr check", Writer: "apr check",
	}, c.Device, silent{}, func(*runlog.Manifest) {})
	if err != nil {
		return nil, err
	}
	out, err := r.Execute(ctx)
	return out, errors.Join(err, r.Close())
}

// silent is an observer that shows nothing.
type silent struct{}

func (silent) Phase(string)                   {}
func (silent) Advance(int, int)               {}
func (silent) Leg(string, int, int)           {}
func (silent) Step(string, runlog.Step)       {}
func (silent) Evaluated(string, int, float64) {}
func (silent) Message(string, ...any)         {}
func (silent) Detail(string, ...any)          {}
