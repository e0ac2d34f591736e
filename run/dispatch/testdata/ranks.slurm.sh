#!/bin/bash
#SBATCH --job-name=apr-1
#SBATCH --output=apr-1.log
#SBATCH --open-mode=append
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=8
#SBATCH --requeue
#SBATCH --signal=B:USR1@30
#SBATCH --time=0-01:00:00
#SBATCH --gres=gpu:8
set -u
cd -- '/runs' || exit 3
set -- env 'A=$(b)' 'apr' 'distill' 'teacher' '--backend=cuda' '--output=runs/r'
mkdir -p runs/dispatch
run='runs/r'
if [ -e runs/dispatch/apr-1.started ]; then
	if ls -d -- "$run"/checkpoints/step-* >/dev/null 2>&1; then
		set -- "$@" "--resume=$run"
	elif [ -e "$run" ]; then
		set -- "$@" --force
	fi
fi
: > runs/dispatch/apr-1.started
set -- srun --mpi=none "$@"
child= requeue= signalled=
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
