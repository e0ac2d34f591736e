package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"apr/device"
	"apr/distill"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/dispatch"
)

// dispatchCheck is one line of what was looked at before the start.
type dispatchCheck struct {
	ID      string  `json:"id"`
	Status  string  `json:"status"` // ok, warning, skipped, failed
	Detail  string  `json:"detail"`
	Seconds float64 `json:"seconds"`
}

// inspection is a run of the checks.
type inspection struct {
	*dispatchOptions
	e    *cli.Env
	c    distill.Config
	job  *dispatch.Job
	r    *dispatchResult
	pre  *distill.Precheck
	dev  device.Device
	open func() (device.Device, error) // another one, for a probe; nil: the device is imagined
	show *distillDisplay
	held float64 // seconds that a checkpoint takes to write
}

// verdict is what a check found, if it did not fail.
type verdict struct{ status, detail string }

func ok(format string, args ...any) (verdict, error) {
	return verdict{"ok", fmt.Sprintf(format, args...)}, nil
}

func other(status, format string, args ...any) (verdict, error) {
	return verdict{status, fmt.Sprintf(format, args...)}, nil
}

// inspect checks everything that can be known before the start, cheap things first; the first failure ends it.
func (d *dispatchOptions) inspect(ctx context.Context, e *cli.Env, c distill.Config, job *dispatch.Job, r *dispatchResult) (err error) {
	i := &inspection{dispatchOptions: d, e: e, c: c, job: job, r: r, show: newDistillDisplay(e, d.LogEvery)}
	if d.scheduler != "local" {
		i.c.Force, i.c.Resume = true, "" // the run directory is there, not here
	}
	if d.scheduler == "slurm" && !filepath.IsAbs(c.Output) { // clusters share their disks
		i.c.Output = filepath.Join(job.Dir, c.Output)
	}
	defer func() {
		i.show.close()
		if i.pre != nil {
			err = errors.Join(err, i.pre.Close())
		}
		if i.dev != nil {
			err = errors.Join(err, i.dev.Close())
		}
	}()
	for _, check := range []struct {
		id string
		do func(context.Context) (verdict, error)
	}{
		{"scheduler", i.checkScheduler}, {"files", i.checkFiles}, {"models_and_tokenizers", i.checkModels}, {"disk", i.checkDisk},
		{"checkpoint_time", i.checkGrace}, {"memory", i.checkMemory}, {"teacher_is_not_student", i.checkIdentity}, {"data", i.checkData},
		{"probe", i.checkProbe},
	} {
		start := time.Now()
		v, err := check.do(ctx)
		i.show.close()
		if err != nil {
			v = verdict{"failed", err.Error()}
		}
		i.tell(dispatchCheck{check.id, v.status, v.detail, time.Since(start).Seconds()})
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// tell prints and records a check.
func (i *inspection) tell(c dispatchCheck) {
	i.r.Checks = append(i.r.Checks, c)
	if i.pre != nil {
		i.r.Inputs = i.pre.Inputs()
	}
	if i.e.JSON {
		return
	}
	p, mark := i.e.Page(), cli.Styled(c.Status)
	switch c.Status {
	case "ok":
		mark = p.Good(c.Status)
	case "failed":
		mark = p.Bad(c.Status)
	}
	const indent = 33 // status, name, and the spaces behind them
	detail := cli.Wrap(cli.Clean(c.Detail), max(0, p.Columns()-indent))
	p.Printf("%s%s  %-22s  %s\n", mark, strings.Repeat(" ", 7-len(c.Status)), c.ID, strings.ReplaceAll(detail, "\n", "\n"+strings.Repeat(" ", indent)))
	_ = flush(i.e.Out) // the end of the command meets the same error and reports it
}

func (i *inspection) checkScheduler(context.Context) (verdict, error) {
	if len(i.r.Submit) == 0 {
		return ok("a process of its own on this machine")
	}
	programs := []string{i.r.Submit[0]}
	if i.scheduler == "ssh" && i.binary != "" {
		programs = append(programs, "scp")
	}
	for _, name := range programs {
		if err := dispatch.Available(name); err != nil {
			if i.dryRun {
				return other("warning", "%v", err)
			}
			return verdict{}, err
		}
	}
	return ok("%s on PATH", strings.Join(programs, " and "))
}

func (i *inspection) checkFiles(context.Context) (_ verdict, err error) {
	files := i.needs()
	if i.binary != "" && i.scheduler != "k8s" {
		files = append(files, i.binary)
	}
	for _, p := range files {
		if _, err := os.Stat(p); err != nil {
			return verdict{}, fault.In(fault.NotFound, p, "no such file or directory").WithHint("paths are relative to %s", here())
		}
	}
	if i.pre, err = distill.NewPrecheck(i.c, i.show); err != nil {
		return verdict{}, err
	}
	return ok("%d paths are there, the run directory is free", len(files))
}

func here() string {
	dir, err := os.Getwd()
	if err != nil {
		return "the working directory"
	}
	return dir
}

func (i *inspection) checkModels(context.Context) (verdict, error) {
	if err := i.pre.Models(); err != nil {
		return verdict{}, err
	}
	return ok("all tensors are there; the tokenizers agree on %s ids", cli.Count(int64(i.pre.Shared())))
}

func (i *inspection) checkDisk(context.Context) (verdict, error) {
	least, err := cli.ParseSize(i.minDisk)
	if err != nil {
		return verdict{}, fault.New(fault.Usage, "--min-disk: %v", err)
	}
	disk := i.pre.Disk()
	need := max(least, disk.Total)
	i.job.MinFree = need
	what := fmt.Sprintf("%s needed: %s by the plan, %s by --min-disk", cli.Bytes(need), cli.Bytes(disk.Total), cli.Bytes(least))
	switch {
	case i.scheduler == "ssh":
		return other("skipped", "%s; %s looks for itself before it starts", what, i.host)
	case i.scheduler == "k8s":
		return other("warning", "%s; the volume of claim %s is not seen from here", what, i.claim)
	case disk.Available == 0:
		return other("warning", "%s; how much is free is not known", what)
	case disk.Available < uint64(need):
		hint := "free some, choose another --output, or keep fewer checkpoints; --min-disk is the least that is asked for"
		if enough := disk.Total/1e9 + 1; disk.Available >= uint64(enough*1e9) {
			hint = fmt.Sprintf("--min-disk %dGB is enough for what the plan counts", enough)
		}
		return verdict{}, fault.In(fault.IO, i.c.Output, "%s, %s free", what,
			cli.Bytes(int64(min(disk.Available, math.MaxInt64)))).WithHint("%s", hint).WithID("E-DISPATCH-030")
	}
	return ok("%s; %s free", what, cli.Bytes(int64(min(disk.Available, math.MaxInt64))))
}

// sample is how much is written to learn how fast the disk is.
const sample = 32 << 20

func (i *inspection) checkGrace(context.Context) (verdict, error) {
	if i.scheduler == "ssh" || i.scheduler == "k8s" {
		return other("skipped", "the disk there is not seen from here; a checkpoint has %s", cli.Bytes(i.pre.CheckpointBytes()))
	}
	dir := existing(i.c.Output)
	speed, err := writeSpeed(dir, int(min(sample, max(1<<20, i.pre.CheckpointBytes()))))
	if err != nil {
		return verdict{}, err
	}
	i.held = float64(i.pre.CheckpointBytes()) / speed
	return i.judgeGrace(i.held, fmt.Sprintf("%s at %s/s, measured in %s: %.1f s", cli.Bytes(i.pre.CheckpointBytes()), cli.Bytes(int64(speed)), dir, i.held))
}

// judgeGrace compares what a stop takes with what a scheduler leaves it. Only a scheduler that kills is a reason to
// refuse.
func (i *inspection) judgeGrace(taken float64, how string) (verdict, error) {
	what := fmt.Sprintf("%s, grace %v", how, i.grace)
	switch {
	case taken <= i.grace.Seconds():
		return ok("%s", what)
	case i.scheduler == "local":
		return other("warning", "%s: whoever stops the run must wait longer", what)
	}
	return verdict{}, fault.New(fault.Invalid, "a checkpoint does not fit into the grace period: %s", what).
		WithHint("--grace %ds, if the scheduler allows it, or a faster disk", int(math.Ceil(1.5*taken))).WithID("E-DISPATCH-031")
}

// existing returns the nearest folder above path that is there.
func existing(path string) string {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == filepath.Dir(dir) {
			return dir
		}
	}
}

// writeSpeed writes and syncs a file of n bytes below dir and returns bytes per second.
func writeSpeed(dir string, n int) (float64, error) {
	f, err := os.CreateTemp(dir, ".speed"+atomicfile.TempMark+"*")
	if err != nil {
		return 0, fault.In(fault.IO, dir, "cannot be written").Because(err)
	}
	defer os.Remove(f.Name())
	block := make([]byte, 1<<20)
	for k := range block {
		block[k] = byte(k * 2654435761 >> 11)
	}
	start := time.Now()
	for left := n; left > 0 && err == nil; left -= len(block) {
		_, err = f.Write(block[:min(left, len(block))])
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		return 0, fault.In(fault.IO, dir, "cannot be written").Because(errors.Join(err, f.Close()))
	}
	seconds := time.Since(start).Seconds()
	if err := f.Close(); err != nil {
		return 0, fault.In(fault.IO, dir, "cannot be written").Because(err)
	}
	return float64(n) / max(seconds, 1e-9), nil
}

func (i *inspection) checkMemory(ctx context.Context) (_ verdict, err error) {
	if i.dev, i.open, err = i.planOptions.open(i.e, i.c.Ranks); err != nil {
		return verdict{}, err
	}
	est, err := i.pre.Memory(ctx, i.dev)
	if err != nil {
		return verdict{}, err
	}
	v, err := ok("%s of %s on %s; %s", cli.Bytes(est.Memory.Total), cli.Bytes(est.Memory.Available), i.dev.Info().Name, est.Setting)
	if i.scheduler != "local" && i.open != nil && i.memory == 0 {
		v.status, v.detail = "warning", v.detail+"; this is this machine's: --memory GIB says that of the other"
	}
	return v, err
}

func (i *inspection) checkIdentity(ctx context.Context) (verdict, error) {
	kin, err := i.pre.Identity(ctx)
	i.r.Kinship = kin
	i.r.SameModel = kin != nil && kin.Allowed
	if err != nil {
		return verdict{}, err
	}
	in := i.pre.Inputs()
	hashes := fmt.Sprintf("teacher %s…, student %s…", in["teacher"].SHA256[:12], in["student_init"].SHA256[:12])
	switch {
	case kin == nil:
		return ok("%s; the student is a new one", hashes)
	case kin.Allowed:
		return other("warning", "%s; %s: allowed by %s", hashes, kin.Text, i.e.Settings.Origin("allow-same-model"))
	case kin.Alike > 0 || kin.Close || kin.Moved > 0:
		return other("warning", "%s; %s", hashes, kin.Text)
	}
	return ok("%s; %s", hashes, kin.Text)
}

func (i *inspection) checkData(ctx context.Context) (verdict, error) {
	steps, err := i.pre.Data(ctx)
	if err != nil {
		return verdict{}, err
	}
	if i.r.Steps == 0 {
		i.r.Steps = steps
	}
	in := i.pre.Inputs()["data"]
	held := "no held-out text"
	if i.pre.HeldOut() {
		held = "no document is in training and held-out text"
	}
	return ok("%s, SHA-256 %s…; %s; %s", in.Detail, in.SHA256[:12], held, plural(i.r.Steps, "step"))
}

func (i *inspection) checkProbe(ctx context.Context) (verdict, error) {
	switch {
	case !i.Probe:
		return other("skipped", "--probe=off")
	case i.open == nil:
		return other("skipped", "there is no such device here")
	}
	step, err := i.pre.Probe(ctx, i.open)
	if err != nil {
		return verdict{}, err
	}
	all := time.Duration(step * float64(i.r.Steps) * float64(time.Second)).Round(time.Second)
	detail := fmt.Sprintf("%.1f ms a step, %v for the %s of the student", 1e3*step, all, plural(i.r.Steps, "step"))
	if i.held == 0 {
		return ok("%s", detail)
	}
	return i.judgeGrace(i.held+step, fmt.Sprintf("%s; to finish a step and write a checkpoint takes %.1f s", detail, i.held+step))
}
