package main

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/diagnose"
	"apr/run/dispatch"
)

// newJob names the job and says where it runs and by which program.
func (d *dispatchOptions) newJob(now time.Time) (j dispatch.Job, err error) {
	var salt [3]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return j, fault.New(fault.Other, "no random bytes").Because(err)
	}
	j = dispatch.Job{
		Ticket: "apr-" + now.Format("20060102-150405") + "-" + hex.EncodeToString(salt[:]), Host: d.host,
		Grace: d.grace, Limit: d.limit, Image: d.image, Claim: d.claim, Secret: d.secret, Set: d.kind == kindJobSet,
	}
	if d.Backend == "cuda" {
		j.GPUs = 1
	}
	here, err := os.Getwd()
	if err != nil {
		return j, fault.New(fault.IO, "the working directory is not known").Because(err)
	}
	program := "apr"
	switch d.scheduler {
	case "local":
		j.Dir, j.RunDir = here, filepath.Join(d.RunsDir, j.Ticket)
	default:
		dirs := map[string]string{"ssh": "apr", "slurm": here, "k8s": "/runs"}
		if j.Dir, j.RunDir = dirs[d.scheduler], path.Join("runs", j.Ticket); d.remoteDir != "" {
			j.Dir = d.remoteDir
		}
	}
	switch {
	case d.scheduler == "ssh" && d.binary != "":
		program = "./apr"
	case d.binary != "" && d.scheduler == "k8s":
		program = d.binary
	case d.binary != "":
		if program, err = filepath.Abs(d.binary); err != nil {
			return j, fault.In(fault.IO, d.binary, "has no absolute path").Because(err)
		}
	case d.scheduler == "local" || d.scheduler == "slurm":
		if program, err = os.Executable(); err != nil {
			return j, fault.New(fault.Other, "the program's own path is not known").Because(err)
		}
	}
	j.Command = []string{program}
	return j, nil
}

// passed are options that stand in the command even where nobody gave them: they are what a record is read for.
var passed = []string{"alpha", "temperature", "batch-size", "learning-rate"}

// argv is the command line of the run, every value that was set as a flag wherever it came from, and its environment.
func (d *dispatchOptions) argv(program, output string, e *cli.Env) (command, env []string) {
	command = []string{program, "distill", d.Teacher}
	if strings.HasPrefix(d.Teacher, "-") {
		command[2] = "./" + d.Teacher
	}
	values := e.Settings.Map()
	for _, o := range (&distillOptions{}).table() {
		s := values[strings.ReplaceAll(o.Name, "-", "_")]
		given := e.Settings.Given(o.Name)
		switch {
		case o.Arg, o.Name == "runs-dir", o.Name == "plan", o.Name == "output", o.Name == "supervise":
		case o.EnvOnly && given:
			env = append(env, o.Env+"="+texts(s.Value)[0])
		case !o.EnvOnly && (given || slices.Contains(passed, o.Name)):
			for _, text := range texts(s.Value) {
				command = append(command, "--"+o.Name+"="+text)
			}
		}
	}
	command = append(command, "--output="+output)
	if d.Supervise || !e.Settings.Given("supervise") {
		command = append(command, "--supervise")
	}
	if e.Offline {
		command = append(command, "--offline")
	}
	for _, key := range e.AllowConfigKeys {
		command = append(command, "--allow-config-key="+key)
	}
	return command, env
}

// expectInputs lets the job compare what it reads with what was checked.
func (r *dispatchResult) expectInputs(job *dispatch.Job) {
	sums := distill.Expected(r.Inputs)
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		job.Command = append(job.Command, "--expect="+name+"="+sums[name])
	}
	r.Command = job.Command
}

// texts are the values of an option as a command line has them.
func texts(v any) []string {
	switch v := v.(type) {
	case []string:
		return v
	case float64:
		return []string{strconv.FormatFloat(v, 'g', -1, 64)}
	}
	return []string{fmt.Sprint(v)}
}

// passedNumbers are read back from the command.
type passedNumbers struct {
	Steps        int     `json:"steps"`
	StepsFrom    string  `json:"steps_from"` // flag; else the data and --epochs
	BatchSize    int     `json:"batch_size"`
	LearningRate float64 `json:"learning_rate"`
	Temperature  float64 `json:"kd_temperature"`
	Alpha        float64 `json:"kd_alpha"`
}

// flagValue returns the last value of a flag in a command, "" if it is not there.
func flagValue(command []string, name string) (value string) {
	for _, a := range command {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			value = v
		}
	}
	return value
}

func readNumbers(command []string) (n passedNumbers, err error) {
	number := func(name string) float64 {
		v, bad := strconv.ParseFloat(flagValue(command, name), 64)
		if bad != nil && err == nil {
			err = fault.New(fault.Other, "the command to execute has no --%s", name)
		}
		return v
	}
	n = passedNumbers{BatchSize: int(number("batch-size")), LearningRate: number("learning-rate"),
		Temperature: number("temperature"), Alpha: number("alpha"), StepsFrom: "data"}
	if flagValue(command, "steps") != "" {
		n.Steps, n.StepsFrom = int(number("steps")), "flag"
	}
	return n, err
}

// record describes a job by its command.
func (d *dispatchOptions) record(j dispatch.Job) (*dispatchRecord, error) {
	n, err := readNumbers(j.Command)
	if err != nil {
		return nil, err
	}
	host := j.Host
	if d.scheduler == "local" {
		if host, err = os.Hostname(); err != nil {
			host = "localhost"
		}
	}
	inDir := func(p string) string {
		if path.IsAbs(p) || strings.Contains(p, "://") {
			return p
		}
		return path.Join(j.Dir, p)
	}
	r := &dispatchRecord{
		Ticket: j.Ticket, Phase: cmp.Or(d.phase, diagnose.Unknown), Falsifier: cmp.Or(d.falsifier, diagnose.Unknown), RunName: path.Base(j.RunDir), Scheduler: d.scheduler, Host: host, Command: j.Command, Environment: append([]string{}, j.Env...),
		Submit: []string{}, Teacher: j.Command[2], StudentInit: flagValue(j.Command, "student") + flagValue(j.Command, "student-config"),
		passedNumbers: n, Machines: max(1, j.Machines), Ranks: j.Ranks,
		Dir: j.Dir, RunDir: inDir(j.RunDir), Log: inDir(j.Log()), Checks: []dispatchCheck{},
	}
	switch d.scheduler {
	case "local":
		r.Log = filepath.Join(j.RunDir, "dispatch.log")
	case "slurm":
		r.Log = inDir(j.SlurmLog())
	case "k8s":
		r.Log, r.Kind = "kubectl logs "+j.PodsOf(), d.kind
	}
	return r, nil
}

// needs returns the local files and folders that the run will read. Addresses of a hub are left out. The name of a run
// on this machine stands for the file of its student.
func (d *dispatchOptions) needs() []string {
	models := slices.Concat([]string{d.Teacher, d.Student}, d.Teachers)
	for _, r := range d.Routes {
		_, model, _ := strings.Cut(r, "=")
		models = append(models, model)
	}
	for i := range models {
		path, _ := modelHere(models[i], d.RunsDir) // opening the model reports the error
		models[i] = cmp.Or(path, models[i])
	}
	all := slices.Concat(models, []string{d.StudentConfig, d.Dataset}, d.Data, d.EvalData)
	if !slices.Contains([]string{"auto", "none", "chatml", ""}, d.ChatTemplate) {
		all = append(all, d.ChatTemplate)
	}
	return slices.DeleteFunc(all, func(p string) bool { return p == "" || strings.Contains(p, "://") || !isPath(p, d.RunsDir) })
}

// render writes what is submitted.
func (d *dispatchOptions) render(j *dispatch.Job, r *dispatchResult) error {
	switch d.scheduler {
	case "ssh":
		r.Script, r.Submit = j.SSHScript(), j.SSH()
		if d.binary != "" {
			_, err := j.SCP(d.binary, "apr")
			return err
		}
	case "slurm":
		r.Script, r.Submit = j.SlurmScript(), j.Sbatch()
	case "k8s":
		text, err := j.Manifest()
		if err != nil {
			return fault.New(fault.Other, "%w", err)
		}
		r.Manifest, r.Submit = string(text), j.Kubectl()
	}
	return nil
}

// isSize refuses a text that ParseSize cannot read as a number of bytes.
func isSize(s string) error {
	_, err := cli.ParseSize(s)
	return err
}

// flushed brings every write to whoever reads it now.
type flushed struct{ w io.Writer }

func (f flushed) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = flush(f.w)
	}
	return n, err
}
