// Package verify recomputes what a finished run wrote down, from the inputs it kept: hashes of inputs, outputs and records,
// the second copies of what the receipt says, the arithmetic of every logged line, the loss and gradient of known steps in float64, further steps on a device, the same
// step under other splits, the final weights, and the held-out scores.
//
// A run knows the weights before training, which follow from a file or a seed, and those of its kept checkpoints. Steps
// are recomputed from there.
//
// Caveats. Loss, CE, KL and gradient norm of a step that is not recomputed are judged by their arithmetic alone: a
// consistent lie about it is found by recomputing more steps only. Nothing is signed: who edits a record that nothing recomputes, with its hash in the
// receipt and every copy, is not found. The inputs must lie where they lay.
package verify

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"apr/device"
	"apr/distill"
	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
)

// Check is one comparison of what was written with what was recomputed.
type Check struct {
	Name       string `json:"name"`  // what was recomputed
	Field      string `json:"field"` // where it was written
	Logged     any    `json:"logged"`
	Recomputed any    `json:"recomputed"`
	OK         bool   `json:"ok"`
	// NotRecorded: the run did not write the value down, so it neither agrees nor disagrees.
	NotRecorded bool `json:"not_recorded,omitempty"`
	// Differs: another program made the run than verifies it. That decides nothing; what both compute does.
	Differs bool `json:"differs,omitempty"`
}

// judges reports whether the check can disagree.
func (c Check) judges() bool { return !c.NotRecorded && !c.Differs }

// ProgramField is where the identity of the program is written.
const ProgramField = "manifest.json: version.program"

// Options say what is verified.
type Options struct {
	Record *runlog.Record
	Config distill.Config // of the run, with Output its directory
	Device device.Device
	Steps  int // steps recomputed from each known state; 0: all to the next
	// Version is what the manifest of a run of this program would say in "version", as far as it names code.
	Version  map[string]any
	Observer distill.Observer
}

// tolerances of recomputed numbers: relative, by the type of the activations that the run computed with.
type tolerances struct{ loss, norm, score float64 }

// tolerancesOf are the widest of a run's attempts, which may have had other devices.
func tolerancesOf(r *runlog.Record) tolerances {
	for _, m := range r.Attempts() {
		if m.Device["activations"] != "f32" || m.Device["dtype"] == "tf32" {
			return tolerances{loss: 2e-2, norm: 0.1, score: 1e-2}
		}
	}
	return tolerances{loss: 1e-5, norm: 1e-4, score: 1e-5}
}

// verifier collects checks.
type verifier struct {
	Options
	tol    tolerances
	out    []Check
	result distill.Outcome
	steps  map[string][]runlog.Step // by leg
	replay *distill.Replay
}

// Run verifies a completed run. Disagreements are checks that are not OK; an error says that something could not be
// recomputed at all.
func Run(ctx context.Context, o Options) ([]Check, error) {
	v := &verifier{Options: o, tol: tolerancesOf(o.Record), steps: map[string][]runlog.Step{}}
	if err := v.open(); err != nil {
		return nil, err
	}
	err := v.compare(ctx)
	// Last, whatever came before: a number that was recomputed says more than one that was written elsewhere as well, and that
	// more than the hash of its file.
	v.receipt()
	if v.replay != nil {
		v.details()
		if err == nil {
			err = v.settings()
		}
		err = errors.Join(err, v.replay.Close())
	}
	return v.out, errors.Join(err, v.records())
}

// compare recomputes what can be. It leaves the inputs open.
func (v *verifier) compare(ctx context.Context) error {
	v.code()
	if err := v.outputs(); err != nil {
		return err
	}
	v.lines()
	v.summary()
	if v.Observer != nil {
		v.Observer.Phase("reading the inputs again")
	}
	var err error
	if v.replay, err = distill.OpenReplay(ctx, v.Config, v.Device, v.Observer); err != nil {
		return fmt.Errorf("the run's inputs: %w", err)
	}
	if err := v.inputs(); err != nil {
		return err
	}
	v.tokenizer()
	if !v.ok() {
		return nil // what follows would compute from something else
	}
	for _, recompute := range []func(context.Context) error{v.recompute, v.final, v.scores} {
		if err := recompute(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ok reports whether all checks so far agree.
func (v *verifier) ok() bool {
	return !slices.ContainsFunc(v.out, func(c Check) bool { return !c.OK && c.judges() })
}

func (v *verifier) add(name, field string, logged, recomputed any, ok bool) {
	v.out = append(v.out, Check{Name: name, Field: field, Logged: logged, Recomputed: recomputed, OK: ok})
}

// recorded adds a comparison of a value that a run may not have written down, in which case it is never equal to anything.
func (v *verifier) recorded(name, field string, logged, recomputed any) {
	if absent(logged) {
		v.out = append(v.out, Check{Name: name, Field: field, Logged: nil, Recomputed: recomputed, NotRecorded: true})
		return
	}
	v.add(name, field, logged, recomputed, same(logged, recomputed))
}

// absent reports whether a value says nothing: null, or an empty text.
func absent(v any) bool { return same(v, nil) || same(v, "") }

// near adds a comparison of numbers; a NaN is never near.
func (v *verifier) near(name, field string, logged, recomputed, tol float64) {
	v.add(name, field, runlog.Number(logged), runlog.Number(recomputed), near(logged, recomputed, tol))
}

// near reports |a−b| ≤ tol·max(|b|, 1e-3): relative, but for numbers that are nearly zero.
func near(a, b, tol float64) bool {
	return math.Abs(a-b) <= tol*math.Max(math.Abs(b), 1e-3)
}

// open reads what the records say.
func (v *verifier) open() error {
	r := v.Record
	if r.Receipt == nil || r.Status != runlog.Completed {
		return fault.In(fault.Invalid, r.Path, "the run is %s, not completed: there is no outcome to verify", r.Status).WithID("E-VERIFY-001")
	}
	for _, e := range r.Events {
		if e.Name == distill.ResumedWithChanges && !distill.OnlyMachine(e.Detail) {
			return fault.In(fault.Invalid, r.Path,
				"the run was resumed with other settings (%v): no one configuration gives all of its steps", e.Detail).
				WithHint("%s holds what was in force at the end; a run with these settings from its first step on can be "+
					"verified. A change of the device or of the program alone is no obstacle", r.Settings).WithID("E-VERIFY-007")
		}
	}
	if r.Damaged > 0 {
		v.add("records", "lines that cannot be read", r.Damaged, 0, false)
	}
	text, err := json.Marshal(r.Receipt.Result)
	if err == nil {
		err = json.Unmarshal(text, &v.result)
	}
	if err != nil {
		return fault.In(fault.Format, filepath.Join(r.Path, "receipt.json"), "its result cannot be read").Because(err).WithID("E-VERIFY-002")
	}
	for _, s := range r.Steps {
		v.steps[s.Leg] = append(v.steps[s.Leg], s)
	}
	if len(v.steps[distill.LegStudent]) == 0 {
		return fault.In(fault.Invalid, r.Path, "no step is logged: there is nothing to verify").WithID("E-VERIFY-003")
	}
	return nil
}

// code compares what names the program.
func (v *verifier) code() {
	for _, key := range slices.Sorted(maps.Keys(v.Version)) {
		v.recorded("code", "manifest.json: version."+key, v.Record.Manifest.Version[key], v.Version[key])
		last := &v.out[len(v.out)-1]
		last.Differs = !last.OK && !last.NotRecorded
	}
}

// same compares as JSON.
func same(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

// outputs hashes the files that the run wrote.
func (v *verifier) outputs() error {
	logged := v.Record.Receipt.Outputs
	if len(logged) == 0 {
		v.add("outputs", "receipt.json: outputs", 0, "at least one file", false)
	}
	for _, name := range slices.Sorted(maps.Keys(logged)) {
		if !filepath.IsLocal(name) {
			return fault.In(fault.UnsafePath, filepath.Join(v.Record.Path, "receipt.json"), "output %q leaves the run's directory", name).WithID("E-VERIFY-006")
		}
		sum, err := hashFile(filepath.Join(v.Record.Path, name))
		if err != nil {
			sum = err.Error()
		}
		v.add("outputs", "receipt.json: outputs."+name, logged[name], sum, err == nil && sum == logged[name])
	}
	return nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// inputs compares the hashes of what was read then and now.
func (v *verifier) inputs() error {
	logged, now := v.Record.Manifest.Inputs, v.replay.Inputs()
	if was, is := v.Record.Manifest.Conventions, v.replay.Conventions(); len(was)+len(is) > 0 {
		v.recorded("inputs", "manifest.json: conventions", was, is)
	}
	for name := range now {
		if _, ok := logged[name]; !ok {
			v.add("inputs", "manifest.json: inputs."+name, nil, now[name].SHA256, false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(logged)) {
		was, is := logged[name], now[name].SHA256
		if _, ok := now[name]; !ok { // not read by training: a file beside it
			if _, err := os.Stat(was.Path); err != nil {
				is = err.Error()
			} else if is, err = hashFile(was.Path); err != nil {
				return fault.In(fault.IO, was.Path, "cannot be read").Because(err)
			}
		}
		v.add("inputs", "manifest.json: inputs."+name+".sha256", was.SHA256, is, was.SHA256 == is)
		if config := now[name].Config; config != "" {
			v.recorded("inputs", "manifest.json: inputs."+name+".config_sha256", was.Config, config)
		}
	}
	return nil
}

// tokenizer compares the tokenizers that were written with the student, by what they hold, with the run's own.
func (v *verifier) tokenizer() {
	logged := v.Record.Manifest.Inputs
	if _, ok := logged["tokenizer"]; !ok {
		return // neither model has one
	}
	if l := v.Config.LoRA; l != nil && !l.Merge {
		return // an adapter has none
	}
	for _, name := range []string{"student.apr", "student"} {
		now, err := tokenizerOf(filepath.Join(v.Record.Path, name))
		for _, part := range []string{"tokenizer", "tokenizer_config"} {
			is := now[part].SHA256
			if err != nil {
				is = err.Error()
			}
			v.add("tokenizer", "manifest.json: inputs."+part+".sha256 in "+name, logged[part].SHA256, is, err == nil && is == logged[part].SHA256)
		}
	}
}

// tokenizerOf returns the records of a model's tokenizer.
func tokenizerOf(path string) (map[string]runlog.Input, error) {
	c, err := modelfile.OpenContainer(path)
	if err != nil {
		return nil, err
	}
	tok, err := c.ReadTokenizer()
	if err := errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	return distill.TokenizerRecords(tok), nil
}
