package verify

import (
	"context"
	"fmt"
	"math"
	"slices"

	"apr/adapter"
	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/distill"
	"apr/internal/fault"
	"apr/internal/ref"
	runlog "apr/run/log"
	"apr/selfcheck"
)

// exactLimit bounds the work of one step in float64: multiplications of parameters with positions.
const exactLimit = 5e11

// recompute takes the steps that follow each known state: the first in float64 and in other splits, all of them on the
// device.
func (v *verifier) recompute(ctx context.Context) error {
	if v.Config.Steps == 0 {
		for leg, steps := range v.steps {
			v.rates(leg, steps, v.replay.Schedule().Steps)
		}
	}
	teachers := 0.0
	for _, f := range v.replay.Teachers() {
		teachers += float64(f.Config.Parameters())
	}
	work := (2*teachers + 6*float64(v.replay.StudentConfig().Parameters())) * float64(v.Config.Rows()*v.Config.SeqLen)
	if work > exactLimit {
		return fault.In(fault.Unavailable, v.Record.Path, "a step of this run is %.1g multiplications; float64 takes at most %.1g", work, exactLimit).
			WithHint("models of this size are verified by hashes and lines only, which is not enough to call a run verified").WithID("E-VERIFY-004")
	}
	if v.Config.RouterBalance != 0 {
		return fault.In(fault.Unavailable, v.Record.Path, "this run has a load-balance loss (--router-balance %g), of which float64 and other micro-batches make another gradient", v.Config.RouterBalance).
			WithHint("such runs are verified by hashes and lines only, which is not enough to call a run verified").WithID("E-VERIFY-012")
	}
	if l := v.Config.LoRA; l != nil && l.Dropout > 0 {
		return fault.In(fault.Unavailable, v.Record.Path, "this run drops values before its adapters (--lora-dropout %g), which float64 does not", l.Dropout).
			WithHint("such runs are verified by hashes and lines only, which is not enough to call a run verified").WithID("E-VERIFY-013")
	}
	teacher, err := v.teaching()
	if err != nil {
		return err
	}
	exact := 0
	for _, leg := range []string{distill.LegStudent, distill.LegControl} {
		steps := v.steps[leg]
		if len(steps) == 0 {
			continue
		}
		known, err := v.replay.KnownStates(leg)
		if err != nil {
			return err
		}
		for i, at := range known {
			if at.Step >= len(steps) {
				continue // after the last step: see final
			}
			end := len(steps)
			if i+1 < len(known) {
				end = min(end, known[i+1].Step)
			}
			if v.Steps > 0 {
				end = min(end, at.Step+v.Steps)
			}
			if err := v.from(ctx, at, steps[at.Step:end], teacher, i == 0); err != nil {
				return err
			}
			exact++
		}
	}
	if exact == 0 {
		return fault.In(fault.Invalid, v.Record.Path, "no logged step follows a known state").WithID("E-VERIFY-005")
	}
	return nil
}

// teaching is the run's teacher in float64.
func (v *verifier) teaching() (selfcheck.Teaching, error) {
	var all []selfcheck.Teaching
	for _, f := range v.replay.Teachers() {
		n, err := selfcheck.Exact(f)
		if err != nil {
			return nil, err
		}
		if p := v.replay.Projection(); p != nil {
			return selfcheck.Projected(n, *p, v.Config.Loss.Temperature), nil
		}
		all = append(all, selfcheck.TaughtBy(n, v.replay.Vocab()))
	}
	e, temperature := v.Config.Ensemble, v.Config.Loss.Temperature
	switch {
	case len(e.Routes) > 0:
		return selfcheck.ByRoute(all), nil
	case len(all) == 1:
		return all[0], nil
	case e.Logits:
		temperature = 0
	}
	return selfcheck.Mixed(all, e.Shares(len(all)), temperature), nil
}

// from takes the logged steps from a known state on.
func (v *verifier) from(ctx context.Context, at distill.Known, steps []runlog.Step, teacher selfcheck.Teaching, splits bool) error {
	if v.Observer != nil {
		v.Observer.Phase(fmt.Sprintf("%s from step %d", at.Leg, at.Step))
	}
	t, loader, err := v.replay.Trainer(at, 0)
	if err != nil {
		return err
	}
	defer func() { t.Free() }()
	first, err := loader.Next()
	if err != nil {
		return err
	}
	if steps[0].Finite {
		if err := v.exact(t, at, steps[0], first, teacher); err != nil {
			return err
		}
	}
	far, where := -1.0, "" // the pair of numbers that is farthest apart, in parts of what is allowed
	var logged, recomputed float64
	for i, s := range steps {
		b := first
		if i > 0 {
			if b, err = loader.Next(); err != nil {
				return err
			}
		}
		rec, err := t.Apply(context.WithoutCancel(ctx), b)
		if err != nil && !distill.Refused(err) {
			return err
		}
		if rec.Finite != s.Finite || rec.Diverged != s.Diverged || rec.Targets != s.Targets {
			v.add("replay", v.field(s, "finite, diverged, targets"), fmt.Sprint(s.Finite, s.Diverged, s.Targets), fmt.Sprint(rec.Finite, rec.Diverged, rec.Targets), false)
			return nil
		}
		if !s.Finite {
			continue
		}
		for j, p := range [4][2]float64{{float64(s.Loss), rec.Loss}, {float64(s.CE), rec.MeanCE}, {float64(s.KL), rec.MeanD}, {float64(s.GradNorm), rec.GradNorm}} {
			if j == 2 && v.replay.Spec(at.Leg).Alpha == 0 {
				continue // not computed
			}
			tol := v.tol.loss
			if j == 3 {
				tol = v.tol.norm
			}
			if d := math.Abs(p[0]-p[1]) / math.Max(math.Abs(p[1]), 1e-3) / tol; !(d <= far) && !math.IsNaN(far) {
				far, where, logged, recomputed = d, v.field(s, [4]string{"loss", "ce", "kl", "grad_norm"}[j]), p[0], p[1]
			}
		}
		if v.Observer != nil {
			v.Observer.Advance(i+1, len(steps))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if far < 0 { // none was finite, then or now
		v.add(fmt.Sprintf("replay of %d steps", len(steps)), v.field(steps[0], "finite"), false, false, true)
		return nil
	}
	v.add(fmt.Sprintf("replay of %d steps", len(steps)), where, runlog.Number(logged), runlog.Number(recomputed), far <= 1)
	if splits {
		return v.splits(ctx, at, steps[0], first)
	}
	return nil
}

// field names a number of a line.
func (v *verifier) field(s runlog.Step, name string) string {
	return fmt.Sprintf("steps.jsonl: %s step %d: %s", s.Leg, s.Step, name)
}

// exact compares one step with float64. The student's weights are those of the known state.
func (v *verifier) exact(trainer *distill.Trainer, at distill.Known, s runlog.Step, b corpus.Batch, teacher selfcheck.Teaching) error {
	weights, err := v.replay.Weights()
	if err != nil {
		return err
	}
	student := &ref.Net{Arch: v.replay.StudentConfig(), Params: map[string]ref.Mat{}}
	for _, s := range arch.Slots(student.Arch) {
		student.Params[s.Name] = selfcheck.Mat(s, weights[s.Name])
	}
	spec := v.replay.Spec(at.Leg)
	if spec.Alpha == 0 {
		teacher = nil
	}
	guided, err := v.guided(trainer)
	if err != nil {
		return err
	}
	loss, sums, grads := selfcheck.ExactStep(student, teacher, guided, b, v.replay.Vocab(), spec)
	a, err := v.replay.Adapter()
	if err != nil {
		return err
	}
	if a != nil {
		grads = adapted(a, grads)
	}
	n := float64(sums.Positions)
	v.near("float64", v.field(s, "loss"), float64(s.Loss), loss, v.tol.loss)
	v.near("float64", v.field(s, "ce"), float64(s.CE), sums.CE/n, v.tol.loss)
	if spec.Alpha != 0 {
		v.near("float64", v.field(s, "kl"), float64(s.KL), sums.D/n, v.tol.loss)
	}
	if s.Hidden != nil {
		v.near("float64", v.field(s, "hidden"), float64(*s.Hidden), sums.Sums[device.HiddenStates]/n, v.tol.loss)
	}
	if s.Attention != nil {
		v.near("float64", v.field(s, "attention"), float64(*s.Attention), sums.Sums[device.AttentionTransfer]/n/float64(len(trainer.Maps.Pairs)), v.tol.loss)
	}
	v.near("float64", v.field(s, "grad_norm"), float64(s.GradNorm), selfcheck.GradNorm(grads), v.tol.norm)
	v.add("float64", v.field(s, "targets"), s.Targets, sums.Positions, int64(s.Targets) == sums.Positions)
	return nil
}

// adapted returns the gradients of an adapter by those of the merged matrices, W + s·B·A: dA = s·Bᵀ·dW and dB = s·dW·Aᵀ.
func adapted(a *adapter.Adapter, grads map[string]ref.Mat) map[string]ref.Mat {
	out := map[string]ref.Mat{}
	for _, m := range a.Modules {
		dw := grads[m.Slot.Name]
		nameA, nameB := m.Names()
		da, db := ref.New(m.Rank, dw.Cols), ref.New(dw.Rows, m.Rank)
		for r := range dw.Rows {
			for k := range m.Rank {
				b := m.Scale * float64(m.B[r*m.Rank+k])
				sum := 0.0
				for c, d := range dw.Row(r) {
					da.Row(k)[c] += b * d
					sum += d * float64(m.A[k*dw.Cols+c])
				}
				db.Row(r)[k] = m.Scale * sum
			}
		}
		out[nameA], out[nameB] = da, db
	}
	return out
}

// guided returns what a trainer's next step compares layer by layer; nil: nothing.
func (v *verifier) guided(t *distill.Trainer) (*selfcheck.Guided, error) {
	pairs, err := t.Compared()
	maps, each := t.Maps.Compared(t.Steps)
	if err != nil || len(pairs) == 0 && len(maps) == 0 {
		return nil, err
	}
	n, err := selfcheck.Exact(v.replay.Teachers()[0])
	return &selfcheck.Guided{Weight: v.Config.Guide.Weight, Pairs: pairs, Maps: maps, Each: each, Teacher: n}, err
}

// splits takes the first step again in other micro-batches: loss and gradient norm must not depend on the cut.
func (v *verifier) splits(ctx context.Context, at distill.Known, s runlog.Step, b corpus.Batch) error {
	if s.Refused() {
		return nil
	}
	cuts := []int{1, (b.Rows + 1) / 2, b.Rows}
	for _, rows := range slices.Compact(cuts) {
		t, _, err := v.replay.Trainer(at, rows)
		if err != nil {
			return err
		}
		rec, err := t.Apply(context.WithoutCancel(ctx), b)
		t.Free()
		if err != nil {
			return err
		}
		name := fmt.Sprintf("micro-batches of %d of %d rows", rows, b.Rows)
		v.near(name, v.field(s, "loss"), float64(s.Loss), rec.Loss, v.tol.loss)
		v.near(name, v.field(s, "grad_norm"), float64(s.GradNorm), rec.GradNorm, v.tol.norm)
	}
	return nil
}

// final compares the student that was written with the checkpoint after the last step, if it is kept, bit by bit.
func (v *verifier) final(context.Context) error {
	known, err := v.replay.KnownStates(distill.LegStudent)
	if err != nil {
		return err
	}
	last := known[len(known)-1]
	if last.Step != len(v.steps[distill.LegStudent]) {
		return nil // the run's last checkpoint was removed; its hash in the receipt remains
	}
	t, _, err := v.replay.Trainer(last, 0)
	if err != nil {
		return err
	}
	t.Free()
	weights, err := v.replay.Weights()
	if err != nil {
		return err
	}
	f, err := v.replay.Final()
	if err != nil {
		return err
	}
	defer f.Close()
	different, n := 0, 0
	for name := range arch.Shapes(f.Config) {
		got, err := f.ReadFloat32(name)
		if err != nil {
			return err
		}
		for i, w := range weights[name] {
			if i >= len(got) || math.Float32bits(got[i]) != math.Float32bits(w) {
				different++
			}
		}
		n += len(got)
	}
	v.add("final weights", fmt.Sprintf("student.apr: values of %d unlike the checkpoint of step %d", n, last.Step), different, 0, different == 0 && n > 0)
	return nil
}

// scores evaluates again.
func (v *verifier) scores(ctx context.Context) error {
	if v.Observer != nil {
		v.Observer.Phase("held-out scores")
	}
	f, err := v.replay.Final()
	if err != nil {
		return err
	}
	defer f.Close()
	got, err := v.replay.Evaluate(ctx, f, len(v.steps[distill.LegControl]) > 0)
	if err != nil {
		return err
	}
	v.evaluations(got.Evaluations)
	v.margins("margins", v.result.Margins, got.Margins)
	v.canaries(got.Canaries)
	return nil
}

// evaluations compares the scores of all models.
func (v *verifier) evaluations(got []distill.Evaluation) {
	logged := v.result.Evaluations
	at := "receipt.json: result.evaluations"
	v.add("scores", at, len(logged), len(got), len(logged) == len(got))
	for i, e := range got[:min(len(got), len(logged))] {
		was, field := logged[i], fmt.Sprintf("%s.%d (%s): ", at, i, e.Name)
		v.add("scores", field+"name", was.Name, e.Name, was.Name == e.Name)
		v.add("scores", field+"targets", was.Targets, e.Targets, was.Targets == e.Targets)
		v.near("scores", field+"nats_per_token", was.NatsPerToken, e.NatsPerToken, v.tol.score)
		v.near("scores", field+"perplexity", float64(was.Perplexity), float64(e.Perplexity), 10*v.tol.score)
		v.add("scores", field+"bits_per_byte", was.BitsPerByte, e.BitsPerByte, near(float64(was.BitsPerByte), float64(e.BitsPerByte), v.tol.score) ||
			!e.BitsPerByte.Finite() && !(was.BitsPerByte > 0)) // not known, which earlier runs left out
		v.spread("scores", field+"nats_standard_error", was.Error, e.Error)
		v.spread("scores", field+"nats_interval_95.0", was.Interval[0], e.Interval[0])
		v.spread("scores", field+"nats_interval_95.1", was.Interval[1], e.Interval[1])
		if !was.KL.Finite() && !e.KL.Finite() { // the teacher's ids are of another tokenizer
			v.add("scores", field+"kl", was.KL, e.KL, true)
			continue
		}
		v.near("scores", field+"kl", float64(was.KL), float64(e.KL), v.tol.score)
		v.near("scores", field+"top1_agreement", float64(was.Top1), float64(e.Top1), 100*v.tol.score)
		if was.Acceptance > 0 { // earlier versions did not record it
			v.near("scores", field+"acceptance", float64(was.Acceptance), float64(e.Acceptance), v.tol.score)
		}
	}
}

// margins compares by how much the student is better than others.
func (v *verifier) margins(where string, logged, got []distill.Margin) {
	at := "receipt.json: result." + where
	v.add("margins", at, len(logged), len(got), len(logged) == len(got))
	for i, m := range got[:min(len(got), len(logged))] {
		was, field := logged[i], fmt.Sprintf("%s.%d (over %s): ", at, i, m.Over)
		v.add("margins", field+"over and blocks", fmt.Sprint(was.Over, was.Blocks), fmt.Sprint(m.Over, m.Blocks), was.Over == m.Over && was.Blocks == m.Blocks)
		v.spread("margins", field+"nats_per_token", was.Nats, m.Nats)
		v.spread("margins", field+"standard_error", was.Error, m.Error)
		v.spread("margins", field+"interval_95.0", was.Interval[0], m.Interval[0])
		v.spread("margins", field+"interval_95.1", was.Interval[1], m.Interval[1])
	}
}

// canaries compares what became of the broken variants.
func (v *verifier) canaries(got []distill.Canary) {
	logged := v.result.Canaries
	at := "receipt.json: result.canaries"
	v.add("canaries", at, len(logged), len(got), len(logged) == len(got))
	for i, c := range got[:min(len(got), len(logged))] {
		was, field := logged[i], fmt.Sprintf("%s.%d (%s): ", at, i, c.Name)
		v.add("canaries", field+"name, targets, caught", fmt.Sprint(was.Name, was.Targets, was.Caught), fmt.Sprint(c.Name, c.Targets, c.Caught),
			was.Name == c.Name && was.Targets == c.Targets && was.Caught == c.Caught)
		v.near("canaries", field+"nats_per_token", float64(was.Nats), float64(c.Nats), v.tol.score)
		v.near("canaries", field+"perplexity", float64(was.Perplexity), float64(c.Perplexity), 10*v.tol.score)
		v.margins(fmt.Sprintf("canaries.%d.margin", i), []distill.Margin{was.Margin}, []distill.Margin{c.Margin})
	}
}

// spread compares differences of scores, whose error is that of a score: a few nats, relative to the tolerance. What
// could not be estimated then cannot be now.
func (v *verifier) spread(name, field string, was, is runlog.Number) {
	ok := math.Abs(float64(was-is)) <= 10*v.tol.score || !was.Finite() && !is.Finite()
	v.add(name, field, was, is, ok)
}
