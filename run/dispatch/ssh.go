package dispatch

import (
	"fmt"
	"strings"

	"apr/internal/fault"
)

// SSH returns the arguments of ssh that run a script given on stdin, whatever the login shell is.
func (j Job) SSH() []string {
	return []string{"ssh", "-T", "-o", "BatchMode=yes", "--", j.Host, "sh", "-s"}
}

// MakeDirScript makes the working directory, for a copy that comes before the job.
func (j Job) MakeDirScript() string { return "mkdir -p -- " + Quote(j.Dir) + "\n" }

// SCP returns the arguments of scp that copy a program into the working directory. Older ones hand the remote path to a
// shell, so it may hold plain characters only.
func (j Job) SCP(binary, name string) ([]string, error) {
	if !plain.MatchString(j.Dir) {
		return nil, fault.New(fault.Usage, "--remote-dir %q: with --binary letters, digits and _./~+=,@- only, because scp may hand it to a shell", j.Dir).WithID("E-DISPATCH-003")
	}
	if strings.ContainsAny(j.Host, "[]") || strings.Count(j.Host, ":") > 0 {
		return nil, fault.New(fault.Usage, "--host %q: scp needs a name without colons; give the host a name in ~/.ssh/config", j.Host).WithID("E-DISPATCH-003")
	}
	return []string{"scp", "-q", "-p", "-o", "BatchMode=yes", "--", binary, j.Host + ":" + strings.TrimSuffix(j.Dir, "/") + "/" + name}, nil
}

// SSHScript checks what only the host knows (files, program, disk), starts the command so that it outlives the
// connection, and prints its process id. It exits with the code of what is missing: 3, 7 or 9.
func (j Job) SSHScript() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say(`refuse() { printf 'apr dispatch: %%s\n' "$2" >&2; exit "$1"; }`)
	say(`mkdir -p -- %s && cd -- %s || refuse 7 'the directory cannot be made'`, Quote(j.Dir), Quote(j.Dir))
	say(`mkdir -p %s || refuse 7 'the directory cannot be written'`, folder)
	for _, p := range j.Needs {
		say(`[ -e %s ] || refuse 3 %s`, Quote(p), Quote(p+": there is no such file on "+j.Host))
	}
	say(`command -v %s >/dev/null 2>&1 || refuse 9 %s`, Quote(j.Command[0]), Quote(j.Command[0]+" is not found on "+j.Host+": --binary PATH copies it"))
	say(`free=$(df -Pk . | awk 'NR == 2 { print $4 }')`)
	say(`[ "${free:-0}" -ge %d ] || refuse 7 "%d kB of disk are needed, ${free:-no} kB are free"`, kilobytes(j.MinFree), kilobytes(j.MinFree))
	say(`rm -f %s %s`, j.file(".pid"), j.file(".status"))
	say(`nohup sh -c 'pid=$1 status=$2; shift 2; "$@" & echo "$!" > "$pid"; wait "$!"; echo "$?" > "$status"' apr-job %s %s \`, j.file(".pid"), j.file(".status"))
	say(`	%s > %s 2>&1 < /dev/null &`, j.invocation(), j.Log())
	say(`i=0; while [ ! -s %s ] && [ "$i" -lt 100 ]; do sleep 0.1; i=$((i + 1)); done`, j.file(".pid"))
	say(`cat %s`, j.file(".pid"))
	return b.String()
}

// FollowScript prints the job's output until it ends and exits as it did.
func (j Job) FollowScript() string {
	return fmt.Sprintf(`cd -- %s || exit 7
tail -n +1 -f %s &
tail=$!
trap 'kill "$tail"' EXIT
while [ ! -s %s ]; do
	if ! kill -0 "$(cat %[4]s)" 2>/dev/null; then
		sleep 2
		[ -s %[3]s ] || { echo 'apr dispatch: the process is gone and left no exit code' >&2; exit 1; }
	fi
	sleep 1
done
sleep 1
exit "$(cat %[3]s)"
`, Quote(j.Dir), j.Log(), j.file(".status"), j.file(".pid"))
}

// kilobytes rounds up to what df prints.
func kilobytes(n int64) int64 { return n/1024 + min(1, n%1024) }
