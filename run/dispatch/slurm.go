package dispatch

import (
	"fmt"
	"strings"
)

// Sbatch returns the arguments of sbatch for a script given on stdin.
func (j Job) Sbatch() []string {
	args := []string{"sbatch", "--parsable"}
	if j.Dir != "" {
		args = append(args, "--chdir="+j.Dir)
	}
	return args
}

// SlurmScript is a batch script. Slurm sends USR1 to its shell Grace before the time is up; the shell passes it on to
// the command, which writes a checkpoint and exits 20, and puts the job back into the queue, where it goes on from
// there. Other signals are passed on as well, and end the job. Ranks on several nodes are the tasks of one step, to
// which srun passes signals on.
func (j Job) SlurmScript() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("#!/bin/bash")
	for _, option := range j.slurmOptions() {
		say("#SBATCH %s", option)
	}
	say("set -u")
	if j.Dir != "" {
		say("cd -- %s || exit 3", Quote(j.Dir))
	}
	say("set -- %s", j.invocation())
	b.WriteString(j.again())
	if j.several() {
		say(`set -- srun --mpi=none "$@"`)
	}
	b.WriteString(`child= requeue= signalled=
forward() { signalled=1; [ -z "$child" ] || kill -s "$1" "$child" 2>/dev/null; }
trap 'requeue=1; forward USR1' USR1
trap 'forward TERM' TERM
trap 'forward INT' INT
"$@" &
child=$!
wait "$child"
code=$?
while [ -n "$signalled" ]; do # a signal ends the wait, not the child
	signalled=
	wait "$child"
	code=$?
done
if [ "$code" -eq 20 ] && [ -n "$requeue" ]; then
	echo "apr dispatch: stopped before the time was up; back into the queue" >&2
	scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
`)
	return b.String()
}

func (j Job) slurmOptions() []string {
	nodes, tasks := "--nodes=1", "--ntasks=1"
	if j.several() {
		nodes, tasks = fmt.Sprintf("--nodes=%d", j.Machines), fmt.Sprintf("--ntasks-per-node=%d", j.Ranks)
	}
	options := []string{
		"--job-name=" + j.Ticket, "--output=" + j.SlurmLog(), "--open-mode=append", nodes, tasks, "--requeue",
		fmt.Sprintf("--signal=B:USR1@%d", seconds(j.Grace)),
	}
	if j.Parts > 0 {
		options = append(options, fmt.Sprintf("--array=0-%d", j.Parts-1))
	}
	if s := seconds(j.Limit); s > 0 {
		options = append(options, fmt.Sprintf("--time=%d-%02d:%02d:%02d", s/86400, s/3600%24, s/60%60, s%60))
	}
	if j.GPUs > 0 {
		options = append(options, fmt.Sprintf("--gres=gpu:%d", j.GPUs))
	}
	return options
}

// SlurmLog is the file that the job's output goes to, in Dir: Slurm makes no folder for it. %a is the number of an
// array's element.
func (j Job) SlurmLog() string {
	if j.Parts > 0 {
		return j.Ticket + "-%a.log"
	}
	return j.Ticket + ".log"
}
