package distill

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/teacher/cache"
)

// checkpointSchema is that of state.json; the ones before it recorded less of what bits depend on.
const checkpointSchema = "apr.checkpoint/5"

var olderSchemas = []string{"apr.checkpoint/1", "apr.checkpoint/2", "apr.checkpoint/3", "apr.checkpoint/4"}

// mustAgree lists what a bit-exact continuation depends on: the options that decide bits by value, what the others led
// to, the program and the device. Values are compared as JSON.
func (r *Run) mustAgree() map[string]any {
	info := r.dev.Info()
	identity := ""
	if d, ok := r.dev.(interface{ Identity() string }); ok { // a device whose bits depend on more than its kind
		identity = d.Identity()
	}
	effects := map[string]any{
		"inputs": r.contents(), "teacher_config": json.RawMessage(r.in.teacher.Config.JSON()),
		"student_config": json.RawMessage(r.in.studentConfig.JSON()),
		"trained_ids":    r.in.trained, "held_ids": r.in.heldOut, "tokens": len(r.in.train.IDs), "vocabulary": r.in.vocab,
		"schedule_steps": r.steps, "schedule_warmup": r.schedule(r.steps).Warmup,
		"planned_chunk_rows": r.in.planned.ChunkRows, "planned_micro_rows": r.in.planned.MicroRows,
		"chosen_teacher_backend": r.in.choice.Backend, "chosen_teacher_gemm": r.in.choice.Chosen.GEMM,
		"device_kind": info.Kind, "instruction_set": info.ISA, "activations": info.Activations.String(), "device_identity": identity,
		"program": r.Build,
	}
	if text, recorded := r.Config.Ranks.arithmetic(); recorded {
		effects[ranksKey] = text
	}
	if len(r.in.more) > 0 {
		var configs []json.RawMessage
		for _, f := range r.in.more {
			configs = append(configs, json.RawMessage(f.Config.JSON()))
		}
		effects["more_teacher_configs"] = configs
	}
	if m := r.in.made; m != nil && m.Kind == cache.Draws {
		effects["teacher_draws"] = map[string]any{"draws": m.Draws, "seed": m.Seed}
	}
	if r.Ensemble.routed() {
		effects["trained_routes"] = r.in.train.RouteTokens(len(r.in.more) + 1)
	}
	all := maps.Clone(r.Options)
	if all == nil {
		all = map[string]any{}
	}
	for key, v := range effects {
		if _, ok := all[key]; ok {
			panic("distill: " + key + " is an option and what options led to")
		}
		all[key] = v
	}
	return all
}

// contents returns the hash of each input that is recorded, so that an input added to the records is compared too. The
// file of a new student is compared by its meaning, student_config, and by the seed.
func (r *Run) contents() map[string]string {
	all := map[string]string{}
	for name, in := range r.in.records {
		all[name] = in.SHA256
	}
	if r.in.student == nil {
		all["student_init"] = fmt.Sprintf("new, seed %d", r.Seed)
	}
	return all
}

// differences names the keys whose values differ, with both values, also those that only one of the two has.
func differences(was, is map[string]any) []string {
	var out []string
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		a, b := asJSON(was[key]), asJSON(is[key])
		_, there := was[key]
		_, here := is[key]
		switch x, y := asMap(a), asMap(b); {
		case reflect.DeepEqual(a, b) && there == here:
		case x != nil && y != nil:
			for _, d := range differences(x, y) {
				out = append(out, key+"."+d)
			}
		case !there:
			out = append(out, fmt.Sprintf("%s was not recorded, is %v", key, b))
		case !here:
			out = append(out, fmt.Sprintf("%s was %v, is not known", key, a))
		default:
			out = append(out, fmt.Sprintf("%s was %v, is %v", key, a, b))
		}
	}
	return out
}

// otherTeacher reports whether differences name the weights of a teacher, or say that one teaches now that did not
// before (alpha was 0, no document went to it), or that several have other shares.
func otherTeacher(diff []string) bool {
	return slices.ContainsFunc(diff, func(d string) bool {
		switch {
		case strings.HasPrefix(d, "inputs.teacher_cache"):
			return false
		case strings.HasPrefix(d, "trained_routes"):
			return strings.Contains(d, " was 0, ") || strings.Contains(d, " was not recorded, ")
		}
		return strings.HasPrefix(d, "inputs.teacher") || strings.HasPrefix(d, "teacher_weights") ||
			strings.HasPrefix(d, "alpha was 0, ")
	})
}

// ofMachine are what mustAgree lists of the device and the program, and of what follows from them. They change the
// rounding of a step and nothing of what it computes.
var ofMachine = []string{"device_kind", "instruction_set", "activations", "device_identity", "program",
	"chosen_teacher_backend", "chosen_teacher_gemm", "planned_chunk_rows", "planned_micro_rows"}

// OnlyMachine reports whether the detail of an event ResumedWithChanges names nothing but the device and the program.
func OnlyMachine(detail any) bool {
	diff, ok := asJSON(detail).([]any)
	return ok && !slices.ContainsFunc(diff, func(d any) bool {
		text, _ := d.(string)
		key, _, _ := strings.Cut(text, " ")
		return !slices.Contains(ofMachine, key)
	})
}

// longHash is a hash whose first digits say enough.
var longHash = regexp.MustCompile(`([0-9a-f]{12})[0-9a-f]{20,}`)

// inShort is a line of differences for a terminal; the events have them whole.
func inShort(diff []string) string {
	const most, longest = 8, 120
	var out []string
	for _, d := range diff[:min(len(diff), most)] {
		d = strings.Replace(strings.Replace(longHash.ReplaceAllString(d, "$1…"), " was ", " ", 1), ", is ", " → ", 1)
		if r := []rune(d); len(r) > longest {
			d = string(r[:longest]) + "…"
		}
		out = append(out, d)
	}
	if more := len(diff) - most; more > 0 {
		out = append(out, fmt.Sprintf("%d more, in events.jsonl", more))
	}
	return strings.Join(out, "; ")
}

// asMap returns the members of an object, or of a list by their numbers.
func asMap(v any) map[string]any {
	list, ok := v.([]any)
	if !ok {
		m, _ := v.(map[string]any)
		return m
	}
	m := map[string]any{}
	for i, x := range list {
		m[strconv.Itoa(i)] = x
	}
	return m
}

func asJSON(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("distill: %v does not encode: %v", v, err))
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

// changes returns in what the run differs from that of a checkpoint: also in its schema, for an older one does not say
// all, and in the records of the steps before it.
func (l *leg) changes(st state) ([]string, error) {
	lost, err := l.lostSteps(st.Step)
	diff := differences(st.Must, l.run.mustAgree())
	if st.Schema != checkpointSchema {
		diff = append([]string{fmt.Sprintf("the checkpoint is of schema %s, which recorded less of what bits depend on than %s", st.Schema, checkpointSchema)}, diff...)
	}
	return append(diff, lost...), err
}

// lostSteps says if steps.jsonl does not hold each of the leg's steps before n once, as it did when the checkpoint was
// written.
func (l *leg) lostSteps(n int) ([]string, error) {
	steps, _, err := l.run.dir.Written()
	if err != nil {
		return nil, err
	}
	count, found, twice := make([]int, n), 0, 0
	for _, s := range steps {
		if s.Leg == l.name && s.Step >= 0 && s.Step < n {
			if count[s.Step]++; count[s.Step] == 1 {
				found++
			} else {
				twice++
			}
		}
	}
	if found == n && twice == 0 {
		return nil, nil
	}
	first := slices.IndexFunc(count, func(c int) bool { return c != 1 })
	return []string{fmt.Sprintf("steps.jsonl holds %d of the %d steps of leg %s before the checkpoint, %d of them more than once; the first that is lost or double is step %d",
		found, n, l.name, twice, first)}, nil
}

// mayContinue refuses a checkpoint of another run, or of an older program, unless changes are allowed.
func (l *leg) mayContinue(st state, from string) error {
	if st.Schema != checkpointSchema && !slices.Contains(olderSchemas, st.Schema) {
		return fault.In(fault.Format, from, "is a checkpoint of schema %q; this program reads %s", st.Schema, checkpointSchema).WithID("E-CKPT-009")
	}
	if st.Leg != l.name { // not even with --allow-changed: it is another student
		return fault.In(fault.Invalid, from, "is a checkpoint of leg %q, not of %q", st.Leg, l.name).
			WithHint("put the folders of checkpoints back where they were").WithID("E-CKPT-003")
	}
	diff, err := l.changes(st)
	if err != nil {
		return err
	}
	if len(diff) == 0 || l.run.AllowChanged || l.run.Config.Ranks.onlyRanks(diff) {
		return nil
	}
	files := l.run.changedFiles(diff, st.Written)
	diff = l.run.flagged(diff)
	if files != "" {
		diff = append([]string{"changed since it was written: " + files}, diff...)
	}
	return fault.In(fault.Invalid, from, "the run differs from that of the checkpoint: %s; only --allow-changed goes on", strings.Join(diff, "; ")).
		WithHint("restore the settings, the program and the records, or --allow-changed, which records the difference").WithID("E-CKPT-004")
}

// flagged returns the differences with the flag in front where the name that is compared is none: the schedule's steps
// and its warmup, which flags decide.
func (r *Run) flagged(diff []string) []string {
	steps, warmup := "--epochs", "--warmup-ratio"
	if r.Steps > 0 {
		steps = "--steps"
	}
	if r.WarmupSteps >= 0 {
		warmup = "--warmup-steps"
	}
	diff = slices.Clone(diff)
	for i, d := range diff {
		switch key, _, _ := strings.Cut(d, " "); key {
		case "schedule_steps":
			diff[i] = steps + ": " + d
		case "schedule_warmup":
			diff[i] = warmup + ": " + d
		}
	}
	return diff
}
