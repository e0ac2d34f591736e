package eval_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"apr/eval"
	"apr/internal/contracttest"
)

// canary is a file that every user may read and change, in a directory likewise: what protects it is the sandbox alone.
type canary struct{ dir, file string }

const secret = "canary-secret"

func newCanary(t *testing.T) canary {
	t.Helper()
	dir, err := os.MkdirTemp("", "apr-canary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := canary{dir, filepath.Join(dir, "canary")}
	old := time.Unix(1e9, 0)
	for _, err := range []error{
		os.WriteFile(c.file, []byte(secret), 0o666), os.Chmod(c.file, 0o666), os.Chmod(dir, 0o777), // on purpose
		os.Chtimes(c.file, old, old),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// state is all that a program could change of the canary.
func (c canary) state(t *testing.T) string {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Lstat(c.file, &s); err != nil {
		return err.Error()
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	list := make([]byte, 4096)
	n, _ := unix.Llistxattr(c.file, list)
	return fmt.Sprintf("%q mode %o owner %d:%d links %d mtime %v xattr %q dir %v", text, s.Mode, s.Uid, s.Gid, s.Nlink, s.Mtim, list[:max(0, n)], names)
}

// attacks are bodies of Go functions that return nil if they succeed. CANARY and DIR are quoted paths outside, PORT is a
// port where somebody listens.
var attacks = []struct{ name, imports, body string }{
	{"chmod", "os", `return os.Chmod(CANARY, 0o600)`},
	{"chtimes", "os time", `return os.Chtimes(CANARY, time.Unix(5, 0), time.Unix(5, 0))`},
	{"chown", "os", `return os.Chown(CANARY, 1, 1)`},
	{"setxattr", "syscall", `return syscall.Setxattr(CANARY, "user.apr", []byte("x"), 0)`},
	{"read a file", "os", `_, err := os.ReadFile(CANARY); return err`},
	{"read a directory", "os", `_, err := os.ReadDir(DIR); return err`},
	{"read passwords", "os", `_, err := os.ReadFile("/etc/shadow"); return err`},
	{"read users", "os", `_, err := os.ReadFile("/etc/passwd"); return err`},
	{"write", "os", `return os.WriteFile(CANARY, nil, 0o666)`},
	{"create", "os", `return os.WriteFile(DIR+"/new", nil, 0o666)`},
	{"truncate", "os", `return os.Truncate(CANARY, 0)`},
	{"open and truncate", "syscall", `_, err := syscall.Open(CANARY, syscall.O_RDONLY|syscall.O_TRUNC, 0); return err`},
	{"remove", "os", `return os.Remove(CANARY)`},
	{"rename", "os", `return os.Rename(CANARY, DIR+"/moved")`},
	{"take", "os", `return os.Rename(CANARY, "mine")`},
	{"link", "os", `return os.Link(CANARY, "link")`},
	{"link outside", "os", `return os.Link(CANARY, DIR+"/link")`},
	{"write through a link", "os", `if err := os.Symlink(CANARY, "link"); err != nil { return err }; return os.WriteFile("link", nil, 0o666)`},
	{"mkdir", "os", `return os.Mkdir(DIR+"/sub", 0o777)`},
	{"named pipe", "syscall", `return syscall.Mkfifo(DIR+"/pipe", 0o666)`},
	{"chmod by descriptor", "fmt os syscall", `fd, err := syscall.Open(CANARY, 0x200000, 0); if err != nil { return err }
		return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o600)`},
	{"dial", "net", `c, err := net.Dial("tcp", "127.0.0.1:PORT"); if err == nil { c.Close() }; return err`},
	{"listen", "net", `_, err := net.Listen("tcp", "127.0.0.1:0"); return err`},
	{"abstract socket", "net", `_, err := net.Listen("unix", "@apr-canary"); return err`},
	{"socket pair", "syscall", `_, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0); return err`},
	{"fork bomb", "os", `var last error
		for i := 0; i < 20; i++ {
			p, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{}); last = err
			if err == nil { p.Kill(); return nil }
		}
		return last`},
	{"kill its parent", "os syscall", `return syscall.Kill(os.Getppid(), 0)`},
	{"kill all", "syscall", `return syscall.Kill(-1, 0)`},
	{"kill its group", "syscall", `return syscall.Kill(0, 0)`},
	{"kill init", "syscall", `return syscall.Kill(1, 0)`},
	{"its parent's environment", "fmt os", `_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", os.Getppid())); return err`},
	{"its parent's command", "fmt os", `_, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", os.Getppid())); return err`},
	{"its own memory", "os", `f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0); if err == nil { f.Close() }; return err`},
	{"all processes", "os", `_, err := os.ReadDir("/proc"); return err`},
	{"a secret of the environment", "errors os strings", `for _, e := range os.Environ() { if strings.Contains(e, "canary-secret") { return nil } }; return errors.New("permission denied: nothing there")`},
	{"inherited files", "errors syscall", `for fd := 3; fd < 64; fd++ {
			b := make([]byte, 64)
			if n, err := syscall.Pread(fd, b, 0); err == nil && n > 0 { return nil }
		}
		return errors.New("permission denied: none")`},
	{"trace", "os syscall", `return syscall.PtraceAttach(os.Getppid())`},
	{"namespaces", "syscall", `return syscall.Unshare(syscall.CLONE_NEWUSER)`},
	{"mount", "syscall", `return syscall.Mount("none", ".", "tmpfs", 0, "")`},
	{"chroot", "syscall", `return syscall.Chroot(".")`},
	{"memory file", "syscall unsafe", `name := []byte("x\x00")
		if _, _, e := syscall.Syscall(319, uintptr(unsafe.Pointer(&name[0])), 0, 0); e != 0 { return e }; return nil`},
	{"shared memory", "syscall", `_, err := syscall.Mmap(-1, 0, 3<<30, 3, syscall.MAP_SHARED|syscall.MAP_ANON); return err`},
	{"a little shared memory", "syscall", `_, err := syscall.Mmap(-1, 0, 4096, 3, syscall.MAP_SHARED|syscall.MAP_ANON); return err`},
	{"validated shared memory", "syscall", `_, err := syscall.Mmap(-1, 0, 4096, 3, 3|syscall.MAP_ANON); return err`},
	{"growing memory", "syscall", `_, err := syscall.Mmap(-1, 0, 4<<30, 3, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_GROWSDOWN); return err`},
	{"a little growing memory", "syscall", `_, err := syscall.Mmap(-1, 0, 4096, 3, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_GROWSDOWN); return err`},
	{"shared zeros", "os syscall", `f, err := os.Open("/dev/zero"); if err != nil { return err }
		_, err = syscall.Mmap(int(f.Fd()), 0, 4096, 1, syscall.MAP_SHARED); return err`},
	{"unreserved memory", "syscall", `_, err := syscall.Mmap(-1, 0, 2<<30, 3, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE); return err`},
	{"memory made writable later", "syscall", `for i := 0; i < 16; i++ {
			m, err := syscall.Mmap(-1, 0, 256<<20, 0, syscall.MAP_PRIVATE|syscall.MAP_ANON); if err != nil { return err }
			if err := syscall.Mprotect(m, 3); err != nil { return err }
		}
		return nil`},
	{"memory made read-only when full", "syscall", `for i := 0; i < 16; i++ { // the limit on data lets it go
			m, err := syscall.Mmap(-1, 0, 256<<20, 3, syscall.MAP_PRIVATE|syscall.MAP_ANON); if err != nil { return err }
			if err := syscall.Mprotect(m, 1); err != nil { return err }
		}
		return nil`},
	{"memory that is moved and grows", "syscall unsafe", `m, err := syscall.Mmap(-1, 0, 4096, 3, syscall.MAP_PRIVATE|syscall.MAP_ANON); if err != nil { return err }
		if _, _, e := syscall.Syscall6(syscall.SYS_MREMAP, uintptr(unsafe.Pointer(&m[0])), 4096, 2<<30, 1, 0, 0); e != 0 { return e }; return nil`},
	{"the end of data", "syscall", `b, _, _ := syscall.Syscall(syscall.SYS_BRK, 0, 0, 0)
		if c, _, _ := syscall.Syscall(syscall.SYS_BRK, b+2<<30, 0, 0); c == b { return syscall.ENOMEM }; return nil`},
	{"a large shared file", "os os/signal syscall", `f, err := os.Create("f"); if err != nil { return nil }
		signal.Ignore(syscall.SIGXFSZ)
		return f.Truncate(64 << 20)`},
	{"an unlimited stack", "errors syscall", `var l syscall.Rlimit; if err := syscall.Getrlimit(syscall.RLIMIT_STACK, &l); err != nil { return nil }
		if l.Max > 8<<20 { return nil }; return errors.New("permission denied: it is limited")`},
	{"a lock on a file that it reads", "os syscall", `f, err := os.Open(os.Args[0]); if err != nil { panic(err) }
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX)`},
	{"a record lock on a file that it reads", "os syscall", `f, err := os.Open(os.Args[0]); if err != nil { panic(err) }
		l := syscall.Flock_t{Type: syscall.F_WRLCK}
		return syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &l)`},
	{"machine code of 32 bits", "errors syscall unsafe", `m, err := syscall.Mmap(-1, 0, 4096, 7, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil { return err }
		copy(m, []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3}) // getpid by int 0x80
		p := &m[0]; q := unsafe.Pointer(&p)
		(*(*func())(unsafe.Pointer(&q)))()
		if syscall.Getpid() < 0 { return errors.New("") }
		return nil`},
}

func (c canary) attack(imports, body, port string) (program, completion string) {
	program = "package main\n\n"
	for _, name := range strings.Fields(imports) {
		program += fmt.Sprintf("import %q\n", name)
	}
	body = strings.NewReplacer("CANARY", fmt.Sprintf("%q", c.file), "DIR", fmt.Sprintf("%q", c.dir), "PORT", port).Replace(body)
	return program + "\nfunc attack() error {\n\t" + body + "\n", "}\n" // the walls, not the rules for what is generated
}

// Whole hostile programs, by the way that apr eval takes: none reaches what it is after, and nothing outside has changed.
// Each fails because it was refused, or is killed: not because it does not compile.
func TestHostileGoPrograms(t *testing.T) {
	t.Setenv("HF_TOKEN", secret)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	inherited(t)
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	for _, tt := range attacks {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := newCanary(t)
			before := c.state(t)
			program, completion := c.attack(tt.imports, tt.body, port)
			program, completion = program+strings.TrimSuffix(completion, "}\n"), "}\n" // rules judge what is generated
			p := eval.Problem{ID: tt.name, Prompt: program, Program: program, Language: "go", Style: "code",
				Test: "func check() {\n\tif err := attack(); err != nil {\n\t\tpanic(err.Error())\n\t}\n}\n"}
			got, err := eval.RunCode(context.Background(), []eval.Problem{p}, 1, script{"": completion}, runner, func() {})
			if err != nil {
				t.Fatal(err)
			}
			score := got.Problems[0]
			if score.Generated != 1 || score.Passed != 0 || !refusedOrKilled(score.Failure) {
				t.Errorf("not refused: %+v", score)
			}
			if after := c.state(t); after != before {
				t.Errorf("the canary was\n%s and is\n%s", before, after)
			}
		})
	}
}

// refusedOrKilled reports whether a program failed because the sandbox refused something.
func refusedOrKilled(why string) bool {
	for _, s := range []string{"permission denied", "not permitted", "exit -1:", "SIGSEGV", "bad system call", "cannot allocate memory", "file too large", "bad file descriptor"} {
		if strings.Contains(why, s) {
			return true
		}
	}
	return false
}

// inherited leaves a secret open in this process, as a shell's redirection would: programs that it starts have it too.
func inherited(t *testing.T) {
	t.Helper()
	fd, err := unix.Open(newCanary(t).file, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// honest are bodies of Go functions that return nil where programs can do what programs do.
var honest = []struct{ name, imports, body string }{
	{"sorting", "fmt sort strings", `x := []int{3, 1, 2}; sort.Ints(x)
		if s := strings.ToUpper(fmt.Sprint(x, "a")); s != "[1 2 3]A" { return fmt.Errorf("%s", s) }; return nil`},
	{"goroutines", "errors runtime sync", `var n int; var mu sync.Mutex; var wg sync.WaitGroup
		for i := 0; i < 1000; i++ { wg.Add(1); go func() { defer wg.Done(); runtime.LockOSThread(); defer runtime.UnlockOSThread(); mu.Lock(); n++; mu.Unlock() }() }
		wg.Wait(); if n != 1000 { return errors.New("lost") }; return nil`},
	{"memory", "errors runtime", `m := map[int][]byte{}; for i := 0; i < 300; i++ { m[i] = make([]byte, 1<<20); m[i][i] = 1; if i%100 == 99 { m = map[int][]byte{}; runtime.GC() } }
		if len(m) != 0 { return errors.New("kept") }; return nil`},
	{"time", "errors time", `start := time.Now(); select { case <-time.After(5 * time.Millisecond): case <-time.After(5 * time.Second): return errors.New("late") }
		if time.Since(start) < 5*time.Millisecond { return errors.New("early") }
		if _, err := time.LoadLocation("UTC"); err != nil { return err }; return nil`},
	{"testing", "errors testing", `r := testing.Benchmark(func(b *testing.B) { for i := 0; i < b.N; i++ { if b.N > 100 { b.SkipNow() } } })
		if testing.AllocsPerRun(10, func() {}) != 0 || r.N < 0 { return errors.New("allocates") }; return nil`},
	{"files", "errors os path/filepath", `d, err := os.MkdirTemp("", "x"); if err != nil { return err }
		f := filepath.Join(d, "a"); if err := os.WriteFile(f, []byte("text"), 0o600); err != nil { return err }
		if err := os.Rename(f, "b"); err != nil { return err }
		b, err := os.ReadFile("b"); if err != nil || string(b) != "text" { return errors.New("lost") }
		if err := os.MkdirAll("x/y/z", 0o700); err != nil { return err }
		if names, err := os.ReadDir("."); err != nil || len(names) < 2 { return errors.New("not listed") }
		return errors.Join(os.RemoveAll(d), os.RemoveAll("x"), os.Remove("b"))`},
	{"signals to itself", "errors os os/signal syscall time", `c := make(chan os.Signal, 1); signal.Notify(c, syscall.SIGUSR1)
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil { return err }
		select { case <-c: return nil; case <-time.After(5 * time.Second): return errors.New("no signal") }`},
	{"pipes", "errors io os", `r, w, err := os.Pipe(); if err != nil { return err }
		go func() { io.WriteString(w, "text"); w.Close() }()
		b, err := io.ReadAll(r); if err != nil || string(b) != "text" { return errors.New("lost") }; return nil`},
	{"many packages", "bufio bytes container/heap crypto/sha256 encoding/json errors math math/big math/rand net/http regexp strconv text/template unicode/utf8", `
		var _ heap.Interface; var _ http.Handler; _ = utf8.RuneError; _ = bufio.ScanLines
		sum := sha256.Sum256([]byte(strconv.Itoa(rand.Intn(10)))); text, err := json.Marshal(map[string]any{"x": big.NewInt(5), "y": math.Pi, "z": sum[:]}); if err != nil { return err }
		if !regexp.MustCompile("^{.x.:5").Match(text) { return errors.New(string(text)) }
		var b bytes.Buffer; return template.Must(template.New("").Parse("{{.}}")).Execute(&b, 5)`},
	{"language of the version", "errors", `var f []func() int; for i := 0; i < 3; i++ { f = append(f, func() int { return i }) }
		if f[0]() != 0 { return errors.New("variables of loops are those of an earlier version") }
		n := 0; for i := range 3 { n += i }; for x := range func(yield func(int) bool) { _ = yield(4) && yield(5) } { n += x }
		if n != 12 { return errors.New("ranges") }; return nil`},
}

// What honest programs do still works, in all three walls.
func TestHonestGoPrograms(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	for _, tt := range honest {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			program, completion := canary{}.attack(tt.imports, tt.body, "")
			p := eval.Problem{Program: program, Language: "go", Style: "code", Test: "func check() {\n\tif err := attack(); err != nil {\n\t\tpanic(err.Error())\n\t}\n}\n"}
			passed, why, err := runner.Passes(context.Background(), p, completion)
			if err != nil || !passed {
				t.Errorf("%s, %v", why, err)
			}
		})
	}
}

// What a program's text asks of the toolchain beyond compiling, it does not get.
func TestHostileGoSources(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	c := newCanary(t)
	before := c.state(t)
	for _, tt := range []struct{ name, text, why string }{
		{"C", "import \"C\"\n", "not in std"},
		{"a linker's flags", "// #cgo LDFLAGS: -Wl,--version\nimport \"C\"\n", "not in std"},
		{"a module", "import _ \"github.com/x/y\"\n", "not in std"},
		{"a file by path", "import _ \"./tests\"\n", "not in std"},
		{"internals", "import _ \"internal/poll\"\n", "internal to it"},
		{"vendored", "import _ \"vendor/golang.org/x/net/idna\"\n", "internal to it"},
		{"a file outside", "import _ \"embed\"\n\n//go:embed " + c.file + "\nvar text string\n", "does not compile"},
		{"a file inside", "import _ \"embed\"\n\n//go:embed go.mod\nvar text string\n", "does not compile"},
		{"no body", "func outside()\n", "does not compile"},
		{"a command", "//go:generate touch " + c.dir + "/generated\n", ""},
		{"a line of another file", "//line " + c.file + ":1\nvar x int = \"\"\n", "does not compile"},
		{"a flag of the linker", "//go:cgo_ldflag \"-fuse-ld=x\"\n", "does not compile"},
		{"a library", "//go:cgo_import_dynamic _ _ \"libc.so.6\"\n", "does not start"},
		{"endless memory", "var x [1 << 40]byte\nvar y = x\n", "does not compile"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			program := "package main\n\n" + tt.text // the problem's: what is generated imports less
			p := eval.Problem{Program: program, Language: "go", Style: "code", Test: "func check() { f() }\n"}
			passed, why, err := runner.Passes(context.Background(), p, "\nfunc f() {}\n")
			if err != nil || passed != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("passed=%v, %q, want %q (%v)", passed, why, tt.why, err)
			}
			if strings.Contains(why, secret) {
				t.Errorf("the compiler tells the canary: %q", why)
			}
			if after := c.state(t); after != before {
				t.Errorf("the canary was\n%s and is\n%s", before, after)
			}
		})
	}
}

// What one program leaves, in its directory, its home or the directory for temporary files, no other finds.
func TestProgramsShareNothing(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	const places = `for _, f := range []string{"left", os.Getenv("HOME") + "/left", os.TempDir() + "/left", "/tmp/left"} {`
	for i, body := range []string{
		places + ` err := os.WriteFile(f, []byte("x"), 0o666); if err != nil && f != "/tmp/left" { return err } }; return nil`,
		places + ` if _, err := os.Stat(f); err == nil { return errors.New(f) } }; return nil`,
	} {
		contracttest.Cases(t, 1)
		program, completion := canary{}.attack("errors os", body+"\n\treturn errors.ErrUnsupported", "")
		p := eval.Problem{Program: program, Language: "go", Style: "code", Test: "func check() {\n\tif err := attack(); err != nil {\n\t\tpanic(err.Error())\n\t}\n}\n"}
		if passed, why, err := runner.Passes(context.Background(), p, completion); err != nil || !passed {
			t.Errorf("program %d: %s, %v", i, why, err)
		}
	}
}

// disarming are Go programs that are wrong, and make the tests say nothing of it; honest ones declare what tests do not use.
var disarming = []struct {
	name, program, completion, test, why string
}{
	{"panic", "func answer() int {\n", "return 2\n}\nfunc panic(any) {\n}\n", "", "declares panic"},
	{"panic as a variable", "func answer() int {\n", "return 2\n}\nvar panic = func(any) {}\n", "", "declares panic"},
	{"panic in a group", "func answer() int {\n", "return 2\n}\nvar (\n\tx = 1\n\ty, panic = 2, func(any) {}\n)\n", "", "declares panic"},
	{"panic of any type", "func answer() int {\n", "return 2\n}\nfunc panic[T any](T) {}\n", "", "declares panic"},
	{"panic as a whole program", "", "package main\n\nfunc answer() int { return 2 }\n\nfunc panic(any) {}\n", "", "declares panic"},
	{"panic behind a line of another file", "func answer() int {\n", "return 2\n}\n\n//line x.go:1\nfunc panic(any) {}\n", "", "declares panic"},
	{"panic begun by the prompt", "func answer() int { return 2 }\nfunc pan", "ic(any) {\n}\n", "", "declares panic"},
	{"a type", "func answer() int {\n", "return 2\n}\ntype error struct{}\n", "func check() {\n\tvar err error\n\tif answer() != 1 && err == nil {\n\t\tpanic(2)\n\t}\n}\n", "declares error"},
	{"a constant", "func answer() int {\n", "return 2\n}\nconst true = 1 == 0\n", "func check() {\n\tif answer() != 1 == true {\n\t\tpanic(2)\n\t}\n}\n", "declares true"},
	{"len", "func answer() string {\n", "return \"\"\n}\nfunc len(string) int { return 1 }\n", "func check() {\n\tif len(answer()) != 1 {\n\t\tpanic(2)\n\t}\n}\n", "declares len"},
	{"the tests", "func answer() int {\n", "return 2\n}\nfunc check() {}\n", "", "does not compile"},
	{"the main function", "func answer() int {\n", "return 2\n}\nfunc main() {}\n", "", "does not compile"},
	{"an exit", "import \"os\"\n\nfunc answer() int {\n", "os.Exit(0)\nreturn 2\n}\n", "", "ended before its tests did"},
	{"an exit before main", "import \"os\"\n\nfunc answer() int {\n", "return 2\n}\nfunc init() { os.Exit(0) }\n", "", "ended before its tests did"},
	{"an init that says the word", "import \"os\"\n\nfunc answer() int {\n", "return 2\n}\nfunc init() {\n\tvar b [64]byte\n\tfor fd := uintptr(0); fd < 32; fd++ {\n\t\tif fd != 1 && fd != 2 {\n\t\t\tif f := os.NewFile(fd, \"\"); f != nil {\n" +
		"\t\t\t\tif n, _ := f.Read(b[:]); n == 26 {\n\t\t\t\t\tprintln(string(b[:n]))\n\t\t\t\t\tos.Exit(0)\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t}\n}\n", "", "exit 2: panic"},
	{"a variable that says the word", "import \"os\"\n\nfunc answer() int {\n", "return 2\n}\nvar word = func() int {\n\tvar b [64]byte\n\tn, _ := os.Stdin.Read(b[:])\n\tif n == 26 {\n\t\tprintln(string(b[:n]))\n\t\tos.Exit(0)\n\t}\n\treturn n\n}()\n", "", "exit 2: panic"},
	{"an exit of the thread", "import \"runtime\"\n\nfunc answer() int {\n", "runtime.Goexit()\nreturn 2\n}\n", "", "exit 2"},
	{"its own text", "import (\n\t\"os\"\n\t\"regexp\"\n)\n\nfunc answer() int {\n", "b, _ := os.ReadFile(os.Args[0])\n" +
		"\tfor _, m := range regexp.MustCompile(`[A-Z]{3,25}[2-7]+[A-Z2-7]+`).FindAll(b, -1) {\n" +
		"\t\tif len(m) >= 26 {\n\t\t\tprintln(string(m[len(m)-26:]))\n\t\t\tos.Exit(0)\n\t\t}\n\t}\n" +
		"\treturn 2\n}\n", "", "uses os."},
	{"a wrong answer", "func answer() int {\n", "return 2\n}\n", "", "exit 2: panic"},

	{"names that the tests do not use", "func answer() int {\n", "return max(1, 0)\n}\nfunc max(a, b int) int { if a > b { return a }; return b }\nfunc cap() {}\n", "", ""},
	{"a name of the prompt", "type any = interface{}\nfunc panic(x any) { println(x.(int)) }\nfunc answer() int {\n", "return 1\n}\n", "", ""},
	{"names inside", "func answer() int {\n", "panic := 1\n\treturn panic\n}\ntype t struct{ panic int }\nfunc (t) println() {}\n", "", ""},
	{"a dot import", "import . \"fmt\"\n\nfunc answer() int {\n", "Sprint(1)\n\treturn 1\n}\n", "", ""},
	{"reading what is not there", "import (\n\t\"io\"\n\t\"os\"\n)\n\nfunc answer() int {\n", "b, err := io.ReadAll(os.Stdin)\n\tif err != nil || len(b) > 0 {\n\t\treturn 2\n\t}\n\treturn 1\n}\n", "", ""},
}

// A program cannot pass because the tests' words mean something else, nor by ending before they do.
func TestDisarmedTests(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	for _, tt := range disarming {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			p := eval.Problem{Program: tt.program, Language: "go", Style: "code", Test: cmp.Or(tt.test, "func check() {\n\tif answer() != 1 {\n\t\tpanic(answer())\n\t}\n}\n")}
			passed, why, err := runner.Passes(context.Background(), p, tt.completion)
			if err != nil || passed != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("passed=%v, %q, want %q (%v)", passed, why, tt.why, err)
			}
		})
	}
}
