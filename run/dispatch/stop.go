package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"apr/internal/fault"
)

// Started is a job as the record of its dispatch has it. Records may come from elsewhere: whatever reaches another
// program is checked first.
type Started struct {
	Scheduler string // ssh, slurm or k8s
	Ticket    string
	Host      string // of ssh
	Dir       string // working directory there
	Program   string // that was started there
	RunDir    string // there
	JobID     string // of Slurm
	Pods      bool   // of Kubernetes: there are several, with a service
	Set       bool   // of Kubernetes: a JobSet, whose service goes with it
}

// Answer is what the other machine says of a run that was told to stop.
type Answer struct {
	Status string // of the run; empty: not known here
	Step   *int   // after which it stopped
	Said   string // what the program of the scheduler printed
}

var jobIDs = regexp.MustCompile(`^[0-9]+(_[0-9]+)?$`)

// check refuses texts that could mean something else where they arrive: above all, those that begin as options do.
func (s Started) check() error {
	refuse := func(id, format string, args ...any) error {
		return fault.New(fault.Format, "the record of the dispatch names "+format, args...).WithID(id)
	}
	form, name, what := tickets, s.Ticket, "ticket"
	switch s.Scheduler {
	case "ssh":
		form, name, what = hosts, s.Host, "host"
	case "slurm":
		form, name, what = jobIDs, s.JobID, "job"
	case "k8s":
	default:
		return refuse("E-DISPATCH-040", "the scheduler %q; ssh, slurm and k8s are elsewhere", s.Scheduler)
	}
	if !form.MatchString(name) {
		return refuse("E-DISPATCH-041", "the %s %q, which is no name of its kind", what, name)
	}
	for _, text := range []string{s.Dir, s.RunDir} {
		odd := text == "" || !utf8.ValidString(text) || strings.IndexFunc(text, unicode.IsControl) >= 0
		if odd && s.Scheduler == "ssh" {
			return refuse("E-DISPATCH-042", "the folder %q, which no script can carry", text)
		}
	}
	if s.Scheduler == "ssh" && s.Program != "apr" && s.Program != "./apr" {
		return refuse("E-DISPATCH-043", "the program %q; apr dispatch starts apr or ./apr", s.Program)
	}
	return nil
}

// Stop tells a job elsewhere to stop as its scheduler does it: its run finishes the step and writes a checkpoint. By
// ssh, apr on that machine looks for the process, and waits for it to end. now ends the run at once.
func (s Started) Stop(ctx context.Context, wait time.Duration, now bool) (a Answer, err error) {
	if err := s.check(); err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait+longest)
	defer cancel()
	if s.Scheduler == "ssh" {
		return s.stopThere(ctx, wait, now)
	}
	calls := [][]string{s.deleteJob(wait)}
	if s.Scheduler == "slurm" {
		calls = s.scancel(now)
	} else if now {
		return a, fault.New(fault.Unavailable, "not built: --now with k8s").
			WithHint("without it the pod has its grace period, apr dispatch --grace")
	}
	var said bytes.Buffer
	for _, argv := range calls {
		if err := run(ctx, argv, "", &said); err != nil {
			return a, err
		}
	}
	a.Said = strings.TrimSpace(said.String())
	return a, nil
}

// scancel returns the calls that stop a job of Slurm. One that waits in the queue is cancelled. The shell of one that
// runs is signalled, passes the signal on and lets the run end in order; a plain scancel would kill it after KillWait
// seconds.
func (s Started) scancel(now bool) [][]string {
	if now {
		return [][]string{{"scancel", "--quiet", s.JobID}}
	}
	return [][]string{
		{"scancel", "--quiet", "--state=PENDING", s.JobID},
		{"scancel", "--quiet", "--batch", "--signal=TERM", s.JobID},
	}
}

// deleteJob returns the call that deletes a Job of Kubernetes with its pods, which have their grace period for a
// checkpoint, and their service.
func (s Started) deleteJob(wait time.Duration) []string {
	patience := fmt.Sprintf("--timeout=%ds", seconds(wait))
	if wait == 0 {
		patience = "--wait=false"
	}
	what := "job"
	switch {
	case s.Set:
		what = "jobset"
	case s.Pods:
		what = "job,service" // of one name
	}
	return []string{"kubectl", "delete", what, "--cascade=foreground", "--ignore-not-found", patience, "--", s.Ticket}
}

// StopScript calls apr runs stop on the machine that the run is on: its own records say which process it is.
func (s Started) StopScript(wait time.Duration, now bool) string {
	more := ""
	if now {
		more = " --now"
	}
	return fmt.Sprintf("cd -- %s || exit 7\nexec %s runs stop --json --wait %ds%s -- %s\n",
		Quote(s.Dir), s.Program, seconds(wait), more, Quote(s.RunDir))
}

// stopThere has apr stop the run on its machine, and returns what that says: a refusal there is one here.
func (s Started) stopThere(ctx context.Context, wait time.Duration, now bool) (a Answer, err error) {
	var out bytes.Buffer
	failed := run(ctx, Job{Host: s.Host}.SSH(), s.StopScript(wait, now), &out)
	var said struct {
		RunStatus string `json:"run_status"`
		Step      *int   `json:"step"`
		ExitCode  *int   `json:"exit_code"`
		Error     struct {
			Message string  `json:"message"`
			Hint    *string `json:"hint"`
		} `json:"error"`
	}
	if json.Unmarshal(out.Bytes(), &said) != nil || said.ExitCode == nil {
		if failed == nil {
			failed = fault.New(fault.Other, "apr on %s printed %q where the answer of runs stop was expected",
				s.Host, strings.TrimSpace(out.String())).WithID("E-DISPATCH-044")
		}
		return a, failed
	}
	if a = (Answer{Status: said.RunStatus, Step: said.Step}); *said.ExitCode == 0 {
		return a, failed
	}
	f := fault.New(fault.Kind(*said.ExitCode), "on %s: %s", s.Host, said.Error.Message).WithID("E-DISPATCH-045")
	if said.Error.Hint != nil {
		return a, f.WithHint("on %s: %s", s.Host, *said.Error.Hint)
	}
	return a, f
}
