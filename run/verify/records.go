package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"apr/distill"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// receipt compares what the receipt says with the steps, the events, the manifest and its own second copies.
func (v *verifier) receipt() {
	r, receipt := v.result, v.Record.Receipt
	all := runlog.Sum(v.Record.Steps, distill.LegStudent)
	ce, kl := math.NaN(), 0.0
	for _, s := range v.steps[distill.LegStudent] {
		if s.Refused() {
			continue
		}
		if ce = float64(s.CE); v.Config.Loss.Alpha != 0 {
			kl = float64(s.KL)
		}
	}
	at := "receipt.json: "
	v.near("receipt", at+"result.ce", r.CE, ce, 1e-12)
	v.near("receipt", at+"result.kl", r.KL, kl, 1e-12)
	v.add("receipt", at+"result.targets_seen", r.TargetsSeen, all.Targets, r.TargetsSeen == all.Targets)
	v.add("receipt", at+"tokens", receipt.Tokens, all.Tokens, receipt.Tokens == all.Tokens)
	v.add("receipt", at+"targets", receipt.Targets, all.Targets, receipt.Targets == all.Targets)
	v.add("receipt", at+"result.status", r.Status, receipt.Status, r.Status == receipt.Status)
	v.add("receipt", at+"reason", receipt.Reason, "", receipt.Reason == "")
	v.add("receipt", at+"result.outputs", r.Outputs, receipt.Outputs, maps.Equal(r.Outputs, receipt.Outputs))
	v.identity()
	v.events()
}

// identity compares the names of the run.
func (v *verifier) identity() {
	id := v.Record.Manifest.RunID
	add := func(field, logged string) { v.add("receipt", field, logged, id, logged == id && id != "") }
	add("receipt.json: run_id", v.Record.Receipt.RunID)
	add("receipt.json: result.run_id", v.result.RunID)
	if v.Record.InForce != v.Record.Manifest {
		add(v.Record.Settings+": run_id", v.Record.InForce.RunID)
	}
	for _, e := range v.Record.Events {
		if d, ok := e.Detail.(map[string]any); ok && e.Kind == runlog.Attempt {
			v.recorded("events", "events.jsonl: attempt "+e.Name+": run_id", d["run_id"], id)
		}
	}
}

// events compares the outcome with the events that tell the same.
func (v *verifier) events() {
	told := map[string]any{} // the last of each name
	var checkpoints, all int
	var seconds, sum float64
	from, peak := "", 0.0
	for _, e := range v.Record.Events {
		d, _ := e.Detail.(map[string]any)
		switch {
		case e.Kind == runlog.Attempt: // begins with no progress, unless it continues
			checkpoints, seconds, from, peak = 0, 0, "", 0
		case e.Kind == "record" && e.Name == "leg" && d["leg"] == distill.LegStudent && d["from"] != 0.0:
			checkpoints, seconds = all, sum // it took them over
		case e.Kind == "checkpoint":
			took, _ := d["seconds"].(float64)
			checkpoints, all, seconds, sum = checkpoints+1, all+1, seconds+took, sum+took
		case e.Kind == "decision" && e.Name == "resume":
			from, _ = d["from"].(string)
		case e.Kind == "record" && e.Name == "device memory":
			peak = 0
			components, _ := d["peak"].(map[string]any)
			for _, n := range components {
				bytes, _ := n.(float64)
				peak += bytes
			}
		case e.Kind == "evaluation":
			told[e.Name] = e.Detail
		}
	}
	r, at := v.result, "receipt.json: result."
	v.add("events", at+"checkpoints", r.Checkpoints, checkpoints, r.Checkpoints == checkpoints)
	v.near("events", at+"checkpoint_seconds", r.CheckpointTime, seconds, 1e-9)
	v.add("events", at+"resumed_from", r.ResumedFrom, from, r.ResumedFrom == from)
	v.add("events", at+"device_peak_bytes", r.DevicePeak, fmt.Sprintf("at least %.0f", peak), float64(r.DevicePeak) >= peak)
	for _, of := range []struct {
		event, field string
		logged       any
		n            int
	}{
		{"held-out", "evaluations", r.Evaluations, len(r.Evaluations)},
		{"margins", "margins", r.Margins, len(r.Margins)},
		{"canaries", "canaries", r.Canaries, len(r.Canaries)},
	} {
		detail, ok := told[of.event]
		if !ok && of.n == 0 {
			continue // no held-out text
		}
		v.add("events", at+of.field+", as events.jsonl has them", of.logged, detail, ok && same(plain(of.logged), plain(detail)))
	}
}

// plain is a value as JSON decodes it, so that members have one order.
func plain(v any) any {
	var out any
	if b, err := json.Marshal(v); err != nil || json.Unmarshal(b, &out) != nil {
		return v
	}
	return out
}

// details compares what else the manifest says of the inputs.
func (v *verifier) details() {
	now := v.replay.Inputs()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		was, is, at := v.Record.Manifest.Inputs[name], now[name], "manifest.json: inputs."+name
		v.add("details", at+".bytes", was.Bytes, is.Bytes, was.Bytes == is.Bytes)
		v.add("details", at+".detail", was.Detail, is.Detail, was.Detail == is.Detail)
		v.add("details", at+".sha256_of", was.Of, is.Of, was.Of == is.Of)
	}
}

// settings compares the manifest's with those that the newest checkpoint of each leg was made with.
func (v *verifier) settings() error {
	for _, leg := range []string{distill.LegStudent, distill.LegControl} {
		if len(v.steps[leg]) == 0 {
			continue
		}
		all, err := v.replay.Settings(leg)
		if err != nil {
			return err
		}
		for _, s := range all {
			v.add("settings", fmt.Sprintf("manifest.json: config.%s, as %s of the %s has it", s.Name, s.Checkpoint, s.Leg), s.Is, s.Was, s.Agrees)
		}
	}
	return nil
}

// records compares the records with their hashes in the receipt, and looks for what no run writes into them.
func (v *verifier) records() error {
	is, err := runlog.HashRecords(v.Record.Path)
	if err != nil {
		return err
	}
	was := v.Record.Receipt.Records
	names := maps.Clone(is)
	maps.Copy(names, was)
	writesThem := !absent(v.Record.Manifest.Version["program"]) // programs that write who they are write hashes too
	for _, name := range slices.Sorted(maps.Keys(names)) {
		field := "receipt.json: records." + name
		if was == nil && !writesThem { // an earlier program's
			v.recorded("records", field, nil, is[name])
			continue
		}
		v.add("records", field, was[name], is[name], was[name] == is[name])
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		var err error
		switch name {
		case "steps.jsonl":
			err = v.strict(name, func() any { return new(runlog.Step) })
		case "events.jsonl":
			err = v.strict(name, func() any { return new(runlog.Event) })
		case runlog.SamplesFile:
			err = v.strict(name, func() any { return new(runlog.Samples) })
		default:
			err = v.strict(name, func() any { return new(runlog.Manifest) })
		}
		if err != nil {
			return err
		}
	}
	if err := v.strict("receipt.json", func() any { return &runlog.Receipt{Result: new(distill.Outcome)} }); err != nil {
		return err
	}
	return v.form(was != nil)
}

// strict reads the values of a record and refuses members that such values have not.
func (v *verifier) strict(name string, value func() any) error {
	path := filepath.Join(v.Record.Path, name)
	f, err := os.Open(path)
	if err != nil {
		return fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	for {
		err := d.Decode(value())
		if errors.Is(err, io.EOF) {
			v.add("records", name+": fields", "known", "known", true)
			return nil
		}
		if err != nil {
			v.add("records", name+": fields", err.Error(), "known", false)
			return nil
		}
	}
}

// form writes the receipt again: a member said twice, or left out, or spelt in another way, is not what the program wrote.
func (v *verifier) form(current bool) error {
	if !current {
		return nil // earlier versions had other members
	}
	path := filepath.Join(v.Record.Path, "receipt.json")
	logged, err := os.ReadFile(path)
	if err != nil {
		return fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	r := runlog.Receipt{Result: new(distill.Outcome)}
	if err := json.Unmarshal(logged, &r); err != nil {
		return fault.In(fault.Format, path, "cannot be read").Because(err).WithID("E-VERIFY-002")
	}
	again, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fault.In(fault.Format, path, "cannot be written again").Because(err).WithID("E-VERIFY-002")
	}
	was, is := bytes.Split(logged, []byte("\n")), bytes.Split(append(again, '\n'), []byte("\n"))
	for i := range max(len(was), len(is)) {
		var a, b []byte
		if i < len(was) {
			a = was[i]
		}
		if i < len(is) {
			b = is[i]
		}
		if i >= len(was) || i >= len(is) || !bytes.Equal(a, b) {
			v.add("records", fmt.Sprintf("receipt.json: line %d, written again", i+1), string(a), string(b), false)
			return nil
		}
	}
	v.add("records", "receipt.json: lines, written again", len(was), len(is), true)
	return nil
}
