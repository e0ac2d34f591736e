// Package dispatch starts a command elsewhere: as a process of its own on this machine, on a host by ssh, as a batch
// job of Slurm, or as a Job or a JobSet of Kubernetes. It renders what is submitted (a script, a manifest) and hands it
// to the system's own programs.
//
//	Job ──SSHScript──▶ ssh HOST sh -s        prints the process id
//	    ──SlurmScript──▶ sbatch --parsable   prints the job's id
//	    ──Manifest──▶ kubectl apply -f -
//	    ──Start──▶ a process with a session of its own
//
// Caveats. ssh, scp, sbatch and kubectl are whatever PATH finds. Text never passes two shells: scripts travel on stdin,
// arguments in them stand in single quotes, and text with control characters is refused, not quoted. The job's
// environment is what Env says; secrets are the host's own business and are taken out of what the submitting programs
// inherit.
package dispatch

import (
	"path"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"apr/internal/fault"
)

// Job is a command to start elsewhere.
type Job struct {
	Ticket  string   // names the job: lower-case letters, digits and hyphens
	Command []string // program and arguments, as they are executed
	Env     []string // NAME=VALUE beyond the environment it finds
	Host    string   // of ssh: [user@]host
	Dir     string   // working directory there
	RunDir  string   // what the command writes, relative to Dir or absolute
	Needs   []string // paths that must be there before it starts
	MinFree int64    // bytes that must be free in Dir

	Grace time.Duration // from the warning to the end
	Limit time.Duration // of the whole job; of Slurm
	GPUs  int
	Image string // of Kubernetes
	Claim string // PersistentVolumeClaim mounted at Dir; of Kubernetes

	// Parts is how many processes share the work: elements of an array, or pods of a Job, each of which finds its number
	// in its environment and may be started again as it is. 0: one run, which goes on where it was cut off.
	Parts  int
	Secret string // whose keys are variables of the pods; of Kubernetes

	// Set makes a JobSet of the Job of Kubernetes.
	Set bool

	// Machines are the nodes or pods of one run, with Ranks ranks on each; at most 1: the command starts its ranks itself.
	Machines, Ranks int
}

// several reports whether the run has ranks on several machines.
func (j Job) several() bool { return j.Machines > 1 }

// folder is where the files of tickets are, in Dir.
const folder = "runs/dispatch"

// Log returns the path of the job's output, relative to Dir.
func (j Job) Log() string { return path.Join(folder, j.Ticket+".log") }

func (j Job) file(ext string) string { return path.Join(folder, j.Ticket+ext) }

var (
	tickets = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?$`)
	hosts   = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9\[][A-Za-z0-9_.:%\[\]-]*$`)
	images  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]*$`)
	claims  = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	plain   = regexp.MustCompile(`^[A-Za-z0-9_./~+=,@][A-Za-z0-9_./~+=,@-]*$`)
)

// Check refuses text that could mean something else where it arrives: control characters (a newline ends a line of a
// script), invalid UTF-8, hosts that are options.
func (j Job) Check() error {
	texts := append(append([]string{j.Dir, j.RunDir}, j.Command...), j.Env...)
	for _, s := range append(texts, j.Needs...) {
		if !utf8.ValidString(s) || strings.IndexFunc(s, unicode.IsControl) >= 0 {
			return fault.New(fault.Usage, "%q holds control characters, which no job script can carry", s).WithID("E-DISPATCH-001")
		}
	}
	for _, v := range []struct {
		what, text string
		form       *regexp.Regexp
		optional   bool
	}{
		{"ticket", j.Ticket, tickets, false}, {"--host", j.Host, hosts, true}, {"--image", j.Image, images, true}, {"--claim", j.Claim, claims, true}, {"--secret", j.Secret, claims, true},
	} {
		if !(v.optional && v.text == "") && !v.form.MatchString(v.text) {
			return fault.New(fault.Usage, "%s %q is no name of its kind", v.what, v.text).WithID("E-DISPATCH-002")
		}
	}
	if len(j.Command) == 0 {
		panic("dispatch: a job without a command")
	}
	return nil
}

// Quote returns s as one word of a POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// words quotes each word.
func words(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = Quote(s)
	}
	return strings.Join(quoted, " ")
}

// invocation is the command with its environment, quoted.
func (j Job) invocation() string {
	if len(j.Env) == 0 {
		return words(j.Command)
	}
	return "env " + words(append(append([]string{}, j.Env...), j.Command...))
}

// again makes of the arguments $@ what goes on where an earlier start of the same ticket was cut off: from its last
// checkpoint, or from the beginning with the torso moved aside. The first start leaves them alone, so that a run that
// somebody else began is refused as ever. Parts go on by themselves.
func (j Job) again() string {
	if j.Parts > 0 {
		return ""
	}
	return `mkdir -p ` + folder + `
run=` + Quote(j.RunDir) + `
if [ -e ` + j.file(".started") + ` ]; then
	if ls -d -- "$run"/checkpoints/step-* >/dev/null 2>&1; then
		set -- "$@" "--resume=$run"
	elif [ -e "$run" ]; then
		set -- "$@" --force
	fi
fi
: > ` + j.file(".started") + `
`
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Line is a command with its environment, as it could be typed: words stay bare where nothing in them means anything to
// a shell.
func Line(env, command []string) string {
	var out []string
	for _, s := range append(append([]string{}, env...), command...) {
		if name, value, ok := strings.Cut(s, "="); ok && assigned.MatchString(name) && !bare.MatchString(s) {
			s = name + "=" + Quote(value)
		} else if !bare.MatchString(s) {
			s = Quote(s)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

var (
	bare     = regexp.MustCompile(`^[A-Za-z0-9_./+=,@:-]+$`)
	assigned = regexp.MustCompile(`^(--)?[A-Za-z][A-Za-z0-9_-]*$`)
)
