package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"apr/distill"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/dispatch"
	runlog "apr/run/log"
)

func dispatchCommand() *cli.Command {
	d := &dispatchOptions{planOptions: &planOptions{distillOptions: &distillOptions{}}}
	return &cli.Command{
		Name: "dispatch", Short: "Check a distillation, then start it here in the background, or elsewhere",
		Long: "Checks a distillation, then starts it. The checks: files, tokenizers, disk, time to write a checkpoint, memory, teacher is\n" +
			"not student, training and held-out text are disjoint, one probe step. Nothing starts unless all pass. They look at this\n" +
			"machine's files; paths are passed on as given, and relative ones start from --remote-dir there. --scheduler:\n" +
			"  local  a process in the background of this machine\n" +
			"  ssh    a process on --host\n" +
			"  slurm  a batch job, which goes back into the queue before its time is up\n" +
			"  k8s    an Indexed Job, or with --kind jobset a JobSet\n" +
			"With --stage precompute, slurm and k8s start --shard-count processes, as an array or an Indexed Job. With\n" +
			"--machines they start the ranks of one run: a step of Slurm, or pods that a headless service names.",
		Example: "apr dispatch TEACHER --student MODEL -d data.jsonl -o runs/mine\n" +
			"apr dispatch examples/gosrc/distill.yaml --dry-run\n" +
			"apr dispatch TEACHER --student MODEL -d data.jsonl --scheduler ssh --host gpu1 --remote-dir work --binary bin/apr\n" +
			"apr dispatch TEACHER --student MODEL -d data.jsonl --scheduler slurm --backend cuda --memory 80 --time 12h --dry-run\n" +
			"apr dispatch TEACHER -d data.jsonl --stage precompute -o s3://bucket/prefix --shard-count 20 " +
			"--scheduler k8s --image r/apr:1 --secret aws --dry-run\n" +
			"apr dispatch TEACHER --student MODEL -d data.jsonl --scheduler k8s --image r/apr:1 --machines 4 --gpus 8 --dry-run",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference, fault.Unavailable,
			fault.Network, fault.HTTP404, fault.UnsafePath, fault.Stopped, fault.Diverged, fault.Hung, fault.Memory},
		Options: append(ofDistill(ofAnyMachine(d.distillOptions.table())), d.own()...), Nested: distillNested, Advice: distillAdvice, EnvPrefix: "APR_DISTILL_", ConfigArg: true, Stray: strayOfDistill, PrintConfig: true, Complete: d.takeEarlierHere,
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return d.run(ctx, e) },
	}
}

// ofAnyMachine are options without what the launcher of this process says of this machine: the job is another's.
func ofAnyMachine(table []cli.Option) []cli.Option {
	for i := range table {
		if o := &table[i]; o.FromEnv != nil {
			o.FromEnv, o.Default, o.Help = nil, "", "index of the GPU there"
		}
	}
	return table
}

// dispatchOptions are those of distill and plan, and where to start.
type dispatchOptions struct {
	*planOptions
	scheduler, host, remoteDir, binary, image, claim, minDisk string
	secret, kind                                              string
	phase, falsifier                                          string // as the user says, for the record
	dryRun, follow                                            bool
	grace, limit                                              time.Duration
	machines                                                  int // nodes or pods of one run
}

func (d *dispatchOptions) own() []cli.Option {
	return []cli.Option{
		{Name: "scheduler", Value: cli.Enum(&d.scheduler, "local", "local", "ssh", "slurm", "k8s"), Help: "how to start the run"},
		{Name: "host", Value: cli.String(&d.host, ""), Help: "ssh: [user@]host"},
		{Name: "remote-dir", Value: cli.String(&d.remoteDir, ""), Default: "ssh: apr; slurm: the working directory; k8s: /runs", Help: "working directory on the other machine; k8s: where --claim is mounted"},
		{Name: "binary", Path: true, Value: cli.String(&d.binary, ""), Default: "local, slurm: this program; ssh, k8s: apr on PATH there", Help: "apr binary to run; ssh copies it to --remote-dir"},
		{Name: "image", Value: cli.String(&d.image, ""), Help: "k8s: container image that holds apr and /bin/sh"},
		{Name: "kind", Value: cli.Enum(&d.kind, kindJob, kindJob, kindJobSet),
			Help: "k8s: submit an Indexed Job, or a JobSet, whose pods all start anew when one of them fails"},
		{Name: "claim", Value: cli.String(&d.claim, "apr"), Help: "k8s: PersistentVolumeClaim that holds models, data and runs"},
		{Name: "secret", Value: cli.String(&d.secret, ""), Help: "k8s: Secret whose keys become variables of the pods, such as AWS_ACCESS_KEY_ID"},
		{Name: "machines", Value: cli.Int(&d.machines, 1).AtLeast(1),
			Help: "slurm, k8s: nodes or pods that train together, with --gpus ranks on each, or their part of --world-size"},
		{Name: "dry-run", Value: cli.Bool(&d.dryRun, false), Help: "show checks, command, script or manifest; start nothing"},
		{Name: "follow", Value: cli.Bool(&d.follow, false), Help: "print the run's steps until it ends, then exit with its code; local and ssh only"},
		{Name: "min-disk", Value: cli.Checked(&d.minDisk, "15GB", isSize),
			Help: "refuse to start with less free disk than this, or than the plan needs"},
		{Name: "grace", Value: cli.Duration(&d.grace, 30*time.Second), Help: "time between a scheduler's warning and its kill; a checkpoint must fit into it"},
		{Name: "time", Value: cli.Duration(&d.limit, 24*time.Hour), Help: "slurm: time limit of the job; a job that reaches it goes back into the queue"},
		{Name: "phase", Value: cli.Checked(&d.phase, "", oneLine), Default: "unknown", Help: "note in the record which phase of the work the run belongs to"},
		{Name: "falsifier", Value: cli.Checked(&d.falsifier, "", oneLine), Default: "unknown", Help: "note in the record what would show the run's claim to be false, such as the id of a falsification test"},
		{Name: "memory", Value: cli.GiB(&d.memory), Default: "all free memory",
			Help: "device memory of the other machine: 24 (GiB), 24GiB, 16GB; with --backend cuda, this machine needs no GPU"},
	}
}

// oneLine refuses text that is not a line that can be printed.
func oneLine(s string) error {
	if s == "" || cli.Clean(s) != s {
		return fmt.Errorf("%q is not a line of text", s)
	}
	return nil
}

// belongs says which scheduler an option is for.
var belongs = map[string]string{"host": "ssh", "image": "k8s", "claim": "k8s", "secret": "k8s", "kind": "k8s",
	"time": "slurm"}

// Kinds of jobs of Kubernetes.
const (
	kindJob    = "job"
	kindJobSet = "jobset"
)

// checkOwn judges the options that concern each other.
func (d *dispatchOptions) checkOwn(s cli.Settings) error {
	for _, name := range []string{"host", "image", "claim", "secret", "kind", "time"} {
		if s.Given(name) && d.scheduler != belongs[name] {
			return fault.New(fault.Usage, "--%s is for --scheduler %s", name, belongs[name])
		}
	}
	switch ext := filepath.Ext(d.Output); {
	case len(d.Expect) > 0:
		return fault.New(fault.Usage, "--expect has no effect with dispatch, "+
			"which gives the job the hashes of the inputs that it checks")
	case d.scheduler == "ssh" && d.host == "":
		return fault.New(fault.Usage, "--scheduler ssh needs --host")
	case d.scheduler == "k8s" && d.image == "":
		return fault.New(fault.Usage, "--scheduler k8s needs --image")
	case d.scheduler == "k8s" && d.remoteDir != "" && !path.IsAbs(d.remoteDir):
		return fault.New(fault.Usage, "--remote-dir %q: with k8s an absolute path", d.remoteDir)
	case d.Teacher == "":
		return fault.New(fault.Usage, "missing argument TEACHER: the model that teaches").WithHint("dispatch needs one, also with --alpha 0; it may be the student")
	case d.scheduler == "local" && s.Given("remote-dir"):
		return fault.New(fault.Usage, "--remote-dir is for other machines")
	case d.scheduler != "local" && d.Resume != "" && d.Output == "":
		return fault.New(fault.Usage, "--resume on another machine needs --output, the run directory there")
	case ext == ".apr" || ext == ".safetensors" || ext == ".gguf":
		return fault.New(fault.Usage, "--output %q: dispatch needs the run directory; it will hold student.apr", d.Output).WithHint("apr convert writes other formats afterwards")
	case d.follow && d.dryRun:
		return fault.New(fault.Usage, "--follow has no effect with --dry-run: nothing is started")
	case d.follow && (d.scheduler == "slurm" || d.scheduler == "k8s"):
		return fault.New(fault.Unavailable, "not built: --follow with %s", d.scheduler).WithHint("tail -f the job's log, or kubectl logs -f job/TICKET")
	}
	return nil
}

// dispatchRecord is dispatch.json: what was really passed on, read from the command that is executed.
type dispatchRecord struct {
	Ticket      string   `json:"ticket"`
	Phase       string   `json:"phase"`     // of the work, as the user said; or diagnose.Unknown
	Falsifier   string   `json:"falsifier"` // what would show the run's claim to be false, as the user said; or diagnose.Unknown
	RunName     string   `json:"run_name"`
	Scheduler   string   `json:"scheduler"`
	Kind        string   `json:"kind,omitempty"` // of Kubernetes: job or jobset
	Host        string   `json:"host"`
	Command     []string `json:"command"`
	Environment []string `json:"environment"` // beyond what is found there
	Submit      []string `json:"submit"`      // the program that submits; empty: none
	Teacher     string   `json:"teacher"`
	StudentInit string   `json:"student_init"`
	passedNumbers
	Dir          string                  `json:"remote_dir"` // working directory there; RunDir and Log begin with it
	RunDir       string                  `json:"remote_run_dir"`
	Log          string                  `json:"remote_log"`
	Machines     int                     `json:"machines"`      // that train together
	Ranks        int                     `json:"ranks"`         // of each machine; 0: the command says
	DispatchedAt *time.Time              `json:"dispatched_at"` // null: it was not
	PID          *int                    `json:"pid"`
	JobID        *string                 `json:"job_id"`
	Inputs       map[string]runlog.Input `json:"inputs"`
	SameModel    bool                    `json:"same_model_allowed"` // teacher and student are the same or derived, and that was asked for
	Kinship      *runlog.Kinship         `json:"kinship"`            // of teacher and student; null for a new student
	Checks       []dispatchCheck         `json:"checks"`
}

// dispatchResult is the JSON of apr dispatch.
type dispatchResult struct {
	*dispatchRecord
	DryRun   bool   `json:"dry_run"`
	Record   string `json:"dispatch_json"` // where the record was written; empty: nowhere
	Script   string `json:"script"`
	Manifest string `json:"manifest"`
	ended    bool
	named    string // as apr runs finds the run here
}

func (d *dispatchOptions) run(ctx context.Context, e *cli.Env) (cli.Result, error) {
	if d.Plan {
		return d.planOptions.run(ctx, e)
	}
	if err := d.checkOwn(e.Settings); err != nil {
		return nil, err
	}
	if err := alone(e); err != nil { // every rank would start a job
		return nil, err
	}
	now := time.Now().UTC()
	job, err := d.newJob(now)
	if err != nil {
		return nil, err
	}
	if d.Output == "" && d.Resume == "" && !d.precomputes() {
		d.Output = job.RunDir
	}
	if d.precomputes() {
		return d.runParts(ctx, e, job)
	}
	if d.Cache != "" {
		return nil, fault.New(fault.Unavailable, "not built yet: apr dispatch of a run from a teacher's cache").WithHint("--stage precompute can be dispatched")
	}
	c, err := d.resolve(ctx, e)
	if err != nil {
		return nil, err
	}
	if job.RunDir = c.Output; d.scheduler == "local" && !filepath.IsAbs(job.RunDir) {
		job.RunDir = filepath.Join(job.Dir, job.RunDir)
	}
	job.Command, job.Env = d.argv(job.Command[0], c.Output, e)
	if err := d.spread(e.Settings, &c, &job); err != nil {
		return nil, err
	}
	job.Needs = d.needs()
	if err := job.Check(); err != nil {
		return nil, err
	}
	record, err := d.record(job)
	if err != nil {
		return nil, err
	}
	r := &dispatchResult{dispatchRecord: record, DryRun: d.dryRun, named: runName(job.RunDir, d.RunsDir)}
	if err := d.render(&job, r); err != nil {
		return nil, err
	}
	if err := d.inspect(ctx, e, c, &job, r); err != nil {
		return r, err
	}
	r.expectInputs(&job)
	if err := d.render(&job, r); err != nil || d.dryRun { // again: the checks know hashes, and how much disk is needed
		return r, err
	}
	if d.scheduler == "local" {
		return d.startHere(ctx, e, c, job, r)
	}
	return d.startElsewhere(ctx, e, job, r)
}

// writeRecord writes dispatch.json.
func (r *dispatchResult) writeRecord(name string) error {
	text, err := json.MarshalIndent(r.dispatchRecord, "", "  ")
	if err != nil {
		return fault.New(fault.Other, "the record cannot be written as JSON").Because(err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fault.In(fault.IO, filepath.Dir(name), "cannot be created").Because(err)
	}
	r.Record = name
	return atomicfile.WritePrivate(name, append(text, '\n'), true)
}

// startHere starts the run as a process of its own, which only then can go on when this one ends.
func (d *dispatchOptions) startHere(ctx context.Context, e *cli.Env, c distill.Config, job dispatch.Job, r *dispatchResult) (cli.Result, error) {
	if err := c.CheckOutputs(); err != nil {
		return r, err
	}
	if err := runlog.Prepare(c.Output, c.Force, c.Resume != ""); err != nil {
		return r, err
	}
	name := filepath.Join(c.Output, runlog.DispatchFile)
	if err := r.writeRecord(name); err != nil { // before the run: what cannot be recorded does not start
		return r, err
	}
	now := time.Now().UTC()
	p, err := dispatch.Start(job.Command[0], job, filepath.Join(c.Output, runlog.DispatchLog))
	if err != nil {
		return r, err
	}
	r.PID, r.DispatchedAt = &p.PID, &now
	if err := r.writeRecord(name); err != nil {
		e.Log.Warn(fmt.Sprintf("process %d runs, but that cannot be written down", p.PID), "error", err)
	}
	code := make(chan int, 1)
	go func() { code <- p.Wait() }()
	if !d.follow {
		return r, r.awaitRecord(ctx, e, c.Output, code)
	}
	return r.follow(ctx, e, c.Output, code)
}

// recordWait bounds how long dispatch waits for the records of a run that it has started.
const recordWait = time.Minute

// awaitRecord waits until apr runs finds the run in dir and can stop it, which takes the time to open models and
// data. A run that ends before is reported as followed runs are. Interrupted, or after recordWait, a line says how
// to stop it until then.
func (r *dispatchResult) awaitRecord(ctx context.Context, e *cli.Env, dir string, code <-chan int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	late := time.After(recordWait)
	for {
		if _, held := runlog.LockedBy(dir); held && runlog.IsRun(dir) {
			return nil
		}
		select {
		case exit := <-code:
			if exit == 0 {
				return nil
			}
			return r.end(exit)
		case <-tick.C:
			continue
		case <-ctx.Done():
		case <-late:
		}
		e.Log.Warn(fmt.Sprintf("process %d is still opening models and data: apr runs knows the run once it has done so; "+
			"until then kill %d stops it", *r.PID, *r.PID))
		return nil
	}
}

// follow prints the steps of a run until its process ends, or this one is interrupted.
func (r *dispatchResult) follow(ctx context.Context, e *cli.Env, dir string, code <-chan int) (cli.Result, error) {
	steps, of := runlog.Follow(dir), legSteps{path: dir}
	for {
		var ended bool
		var exit int
		select {
		case exit = <-code:
			ended = true
		case <-ctx.Done():
			e.Log.Info(fmt.Sprintf("process %d goes on; apr runs tail %s", *r.PID, dir))
			return r, nil
		case <-time.After(time.Second / 4):
		}
		more, _, err := steps.Next()
		if err != nil && fault.KindOf(err) != fault.NotFound { // the run may not have begun to write
			return r, err
		}
		for _, s := range more {
			fmt.Fprintln(e.Out, stepLine(s, of.steps(s.Leg), e.Page().Columns()))
		}
		if err := flush(e.Out); err != nil {
			return r, err
		}
		if ended {
			return r, r.end(exit)
		}
	}
}

// end turns the exit code of a followed run into this program's.
func (r *dispatchResult) end(code int) error {
	if r.ended = true; code == 0 {
		return nil
	}
	return &cli.Exit{Code: code, Err: fault.New(fault.Kind(code), "the run ended with exit code %d", code).
		WithHint("see the end of %s, or apr runs diagnose %s", r.Log, r.RunDir).WithID("E-DISPATCH-020")}
}

// startElsewhere hands the job to the program that starts it.
func (d *dispatchOptions) startElsewhere(ctx context.Context, e *cli.Env, job dispatch.Job, r *dispatchResult) (cli.Result, error) {
	name := filepath.Join(d.RunsDir, "dispatch", job.Ticket+".json")
	if err := r.writeRecord(name); err != nil {
		return r, err
	}
	text := r.Script + r.Manifest
	if d.scheduler == "ssh" && d.binary != "" {
		if _, err := dispatch.Submit(ctx, job.SSH(), job.MakeDirScript()); err != nil {
			return r, err
		}
		copying, err := job.SCP(d.binary, "apr")
		if err != nil {
			return r, err
		}
		if _, err := dispatch.Submit(ctx, copying, ""); err != nil {
			return r, err
		}
	}
	said, err := dispatch.Submit(ctx, r.Submit, text)
	if err != nil {
		return r, err
	}
	now := time.Now().UTC()
	r.DispatchedAt = &now
	if err := r.started(d.scheduler, said); err != nil {
		return r, err
	}
	if err := r.writeRecord(name); err != nil || !d.follow {
		return r, err
	}
	code, err := dispatch.Follow(ctx, job.SSH(), job.FollowScript(), flushed{e.Out})
	if ctx.Err() != nil {
		e.Log.Info(fmt.Sprintf("process %d on %s goes on", *r.PID, job.Host))
		return r, nil
	}
	if err != nil {
		return r, err
	}
	return r, r.end(code)
}

// started takes over what the submitting program said.
func (r *dispatchResult) started(scheduler, said string) error {
	if scheduler != "ssh" {
		id, _, _ := strings.Cut(said, ";")          // sbatch --parsable: id[;cluster]
		id = id[strings.LastIndexByte(id, '\n')+1:] // kubectl says a service first
		r.JobID = &id
		return nil
	}
	var pid int
	if _, err := fmt.Sscanf(said, "%d", &pid); err != nil || pid <= 0 {
		return fault.New(fault.Other, "ssh printed %q where a process id was expected", said).WithHint("see %s on %s", r.Log, r.Host).WithID("E-DISPATCH-012")
	}
	r.PID = &pid
	return nil
}

// Text says what was started, or would be.
func (r *dispatchResult) Text(p *cli.Page) {
	if r.DryRun {
		p.Printf("\ncommand\n  %s\n", dispatch.Line(r.Environment, r.Command))
		if len(r.Submit) > 0 {
			p.Printf("submitted by\n  %s\n", dispatch.Line(nil, r.Submit))
		}
		if text := r.Script + r.Manifest; text != "" {
			p.Printf("\n%s", text)
		}
		p.Printf("\nNothing was started.\n")
		return
	}
	if r.DispatchedAt == nil {
		p.Printf("\nNothing was started.\n")
		return
	}
	pairs := []string{"ticket", r.Ticket, "run", r.RunDir, "log", r.Log, "record", r.Record}
	if r.PID != nil {
		pairs = append(pairs, "process", fmt.Sprint(*r.PID))
	}
	if r.JobID != nil {
		pairs = append(pairs, "job", *r.JobID)
	}
	pairs = append(pairs, r.next()...)
	p.Printf("\n")
	p.Pairs(pairs...)
}

// next is how to look after a run that was started: by its name where `apr runs` finds it.
func (r *dispatchResult) next() []string {
	switch {
	case r.ended:
		return nil
	case r.Scheduler != "local":
		return []string{"next", "apr runs stop " + shellWord(r.RunName)}
	}
	return []string{"next", "apr runs tail " + r.named, "", "apr runs stop " + r.named}
}
