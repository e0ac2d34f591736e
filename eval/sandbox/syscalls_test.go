//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"apr/internal/contracttest"
)

// entry is a line of testdata/syscalls.txt.
type entry struct {
	class string
	args  []string
}

func classified(t *testing.T) map[string]entry {
	t.Helper()
	text, err := os.ReadFile("testdata/syscalls.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]entry{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" || strings.HasPrefix(line, "#") {
			continue
		}
		if _, ok := all[words[0]]; ok || len(words) < 2 {
			t.Fatalf("twice, or without a class: %q", line)
		}
		all[words[0]] = entry{words[1], words[2:]}
	}
	return all
}

// table is a machine's numbers of system calls by name, as golang.org/x/sys/unix has them from the kernel's headers.
func table(t *testing.T, arch string) map[string]uint32 {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go"))
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]uint32{}
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)$`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		numbers[strings.ToLower(m[1])] = uint32(n)
	}
	if len(numbers) < 300 {
		t.Fatalf("%d system calls of %s", len(numbers), arch)
	}
	return numbers
}

// Every system call of both tables is classified, no other is, and the filter's lists are those of the classification: a system
// call that a later kernel has fails this test until somebody says what it does.
func TestSystemCallsAreClassified(t *testing.T) {
	all := classified(t)
	known := map[string]bool{}
	for _, arch := range []string{"amd64", "arm64"} {
		for name := range table(t, arch) {
			known[name] = true
			if _, ok := all[name]; !ok {
				t.Errorf("%s of %s is not in testdata/syscalls.txt", name, arch)
			}
		}
	}
	want := map[string][]uint32{}
	here := table(t, runtime.GOARCH)
	for name, e := range all {
		if !known[name] {
			t.Errorf("%s is no system call", name)
		}
		if n, ok := here[name]; ok {
			want[e.class] = append(want[e.class], n)
		}
		if targeted := slices.Contains([]string{"walled", "judged", "changes"}, e.class); targeted && len(e.args) == 0 && name != "sync" {
			t.Errorf("%s is tried without arguments", name)
		}
	}
	contracttest.Cases(t, len(known))
	listed := slices.Concat(allowed, allowedHere)
	var byArguments []uint32
	for _, j := range slices.Concat(judgedEverywhere(1), judgedHere) {
		byArguments = append(byArguments, j.number)
	}
	byArguments = append(byArguments, unix.SYS_CLONE, unix.SYS_PRLIMIT64, unix.SYS_MMAP)
	for _, x := range []struct {
		what      string
		got, want []uint32
	}{{"allowed", listed, slices.Concat(want["allowed"], want["walled"])}, {"judged", byArguments, want["judged"]}} {
		slices.Sort(x.got)
		slices.Sort(x.want)
		if !slices.Equal(slices.Compact(x.got), x.want) {
			t.Errorf("%s are %v, and classified %v", x.what, x.got, x.want)
		}
	}
}

// attempt is one system call that a program in the sandbox makes.
type attempt struct {
	Name   string
	Number uint32
	Args   []string
	Want   string // EPERM; ENOSYS; fails
}

// sweepName is the first argument of the test program when it is to make system calls in the sandbox.
const sweepName = "-sweep"

func init() {
	if len(os.Args) == 4 && os.Args[1] == sweepName {
		sweep(os.Args[2], os.Args[3])
	}
}

// Memory that system calls are given.
var (
	zeros [256]byte
	empty [1]byte
	name  = []byte("user.apr\x00")
)

// sweep makes the system calls that it reads, and prints their errors.
func sweep(canary, dir string) {
	runtime.LockOSThread()
	text, err := io.ReadAll(os.Stdin)
	var attempts []attempt
	if err == nil {
		err = json.Unmarshal(text, &attempts)
	}
	if err == nil {
		err = os.WriteFile("mine", nil, 0o600)
	}
	fd, err2 := unix.Open(canary, unix.O_PATH, 0) // Landlock lets it: a name, no content
	if err != nil || err2 != nil {
		fmt.Println(err, err2)
		os.Exit(1)
	}
	path := func(s string) uintptr { p, _ := unix.BytePtrFromString(s); return uintptr(unsafe.Pointer(p)) }
	values := map[string]uintptr{
		"C": path(canary), "D": path(dir), "N": path(dir + "/new"), "M": path("moved"), "F": uintptr(fd), "W": ^uintptr(99), "E": uintptr(unsafe.Pointer(&empty)),
		"X": uintptr(unsafe.Pointer(&name[0])), "B": uintptr(unsafe.Pointer(&zeros)), "P": uintptr(os.Getppid()),
	}
	self := os.Getpid()
	for _, a := range attempts {
		var args [6]uintptr
		for i, s := range a.Args {
			n, err := strconv.ParseInt(s, 0, 64)
			v, ok := values[s]
			if !ok {
				v = uintptr(n)
			}
			if !ok && err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			args[i] = v
		}
		_, _, errno := syscall.RawSyscall6(uintptr(a.Number), args[0], args[1], args[2], args[3], args[4], args[5])
		if os.Getpid() != self {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0) // a child, which should not be there
		}
		if _, err := fmt.Println("errno", int(errno)); err != nil {
			os.Exit(1)
		}
	}
	runtime.KeepAlive(values)
	fmt.Println("swept")
	os.Exit(0)
}

// canaryFile makes a file that the programs of a box own, in a directory that they own: nothing but the sandbox protects it.
func canaryFile(t *testing.T, b *Box) (dir, file string) {
	t.Helper()
	dir, err := b.MakeDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	file = filepath.Join(dir, "canary")
	old := time.Unix(1e9, 0)
	errs := []error{os.WriteFile(file, []byte("canary"), 0o666), os.Chmod(file, 0o666), os.Chmod(dir, 0o777), os.Chtimes(file, old, old)} // on purpose
	if b.id != 0 {
		errs = append(errs, os.Chown(file, b.id, b.id))
	}
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, file
}

// state is all of a file and its directory that may not change. The time of the last change of an inode tells also what
// was changed and changed back.
func state(t *testing.T, dir, file string) string {
	t.Helper()
	var s, d unix.Stat_t
	if err := unix.Lstat(file, &s); err != nil {
		return err.Error()
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Lstat(dir, &d); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%q, mode %o, owner %d:%d, %d links, changed %v %v; directory %v, mode %o, owner %d:%d, changed %v %v",
		text, s.Mode, s.Uid, s.Gid, s.Nlink, s.Mtim, s.Ctim, names, d.Mode, d.Uid, d.Gid, d.Mtim, d.Ctim)
}

// attempts are all system calls of this machine that must not succeed: every number that is not allowed, named or not, with
// arguments of zero; the same in the x32 numbering; and those that the classification has arguments for, aimed at the canary.
func attempts(t *testing.T) []attempt {
	const numbers = 1024
	var list []attempt
	free, passed := map[uint32]bool{}, map[uint32]bool{}
	all := classified(t)
	for name, n := range table(t, runtime.GOARCH) {
		e := all[name]
		want := "EPERM"
		switch e.class {
		case "allowed":
			free[n] = true
			continue
		case "passed":
			passed[n] = true
			continue
		case "absent":
			free[n], want = true, "ENOSYS"
		case "walled":
			free[n], want = true, "fails"
		case "judged":
			free[n] = true
		}
		list = append(list, attempt{name, n, e.args, want})
	}
	for n := range uint32(numbers) {
		if !free[n] && !passed[n] {
			list = append(list, attempt{"number " + strconv.Itoa(int(n)), n, nil, "EPERM"})
		}
		if runtime.GOARCH == "amd64" {
			list = append(list, attempt{"x32 " + strconv.Itoa(int(n)), 0x40000000 | n, nil, "EPERM"})
		}
	}
	slices.SortStableFunc(list, func(a, b attempt) int { return int(a.Number) - int(b.Number) })
	return list
}

// A program in the sandbox makes every system call of the machine that is not plainly allowed, by number, and each that could
// change a file, aimed at a canary that it owns. All are refused by the filter, or by Landlock, and the canary is the same
// after each hundred of them.
func TestEverySystemCall(t *testing.T) {
	b := open(t, DefaultLimits)
	if b == nil {
		return
	}
	dir, file := canaryFile(t, b)
	before := state(t, dir, file)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for list := range slices.Chunk(attempts(t), 100) {
		input, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Run(t.Context(), Program{Argv: []string{self, sweepName, file, dir}, Input: string(input), Read: []string{self}})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Split(strings.TrimSpace(r.Stdout), "\n")
		if r.Exit != 0 || len(said) != len(list)+1 || said[len(said)-1] != "swept" {
			t.Errorf("the program ended in %q: exit %d, %s", list[min(len(said)-1, len(list)-1)].Name, r.Exit, r.Stderr)
			continue
		}
		for i, a := range list {
			ok := said[i] == fmt.Sprint("errno ", int(unix.EPERM))
			switch a.Want {
			case "ENOSYS":
				ok = said[i] == fmt.Sprint("errno ", int(unix.ENOSYS))
			case "fails":
				ok = said[i] != "errno 0"
			}
			if !ok {
				t.Errorf("%s (%d) %v: %s, want %s", a.Name, a.Number, a.Args, said[i], a.Want)
			}
		}
		contracttest.Cases(t, len(list))
		if after := state(t, dir, file); after != before {
			t.Fatalf("among system calls %d to %d the canary %s\nbecame %s", list[0].Number, list[len(list)-1].Number, before, after)
		}
	}
}
