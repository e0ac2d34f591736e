//go:build gpu && !emulate

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"apr/device/cuda/driver"
)

func init() { programs["apr-on-a-gpu-that-hangs"] = onHangingGPU }

// hangAfter names the record of steps after whose fifth line the GPU hangs.
const hangAfter = "APR_TEST_HANG_AFTER"

// occupy is a kernel that lasts for as many nanoseconds as its argument says.
const occupy = `.version 8.0
.target sm_80
.address_size 64
.visible .entry occupy(.param .u64 lasts)
{
	.reg .pred %p;
	.reg .u64 %begin, %now, %lasts;
	ld.param.u64 %lasts, [lasts];
	mov.u64 %begin, %globaltimer;
AGAIN:
	mov.u64 %now, %globaltimer;
	sub.u64 %now, %now, %begin;
	setp.lt.u64 %p, %now, %lasts;
	@%p bra AGAIN;
	ret;
}
`

// onHangingGPU is apr, on a GPU that from some step on has no room for another kernel for a minute.
func onHangingGPU() {
	go func() {
		for {
			if b, err := os.ReadFile(os.Getenv(hangAfter)); err == nil && bytes.Count(b, []byte("\n")) >= 5 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := hang(time.Minute); err != nil {
			fmt.Fprintln(os.Stderr, "the GPU does not hang:", err)
			os.Exit(99)
		}
	}()
	main()
}

// hang fills all multiprocessors of the GPU for some time.
func hang(lasts time.Duration) error {
	d, err := driver.Open()
	if err != nil {
		return err
	}
	info, err := d.Describe(0)
	if err != nil {
		return err
	}
	c, err := d.NewContext(0)
	if err != nil {
		return err
	}
	return c.Do(func(t *driver.Thread) error {
		s, err := t.NewStream()
		if err != nil {
			return err
		}
		m, err := t.LoadModule([]byte(occupy))
		if err != nil {
			return err
		}
		f, err := t.Function(m, "occupy")
		if err != nil {
			return err
		}
		args := lasts.Nanoseconds()
		return t.Launch(f, [3]int{2 * info.Multiprocessors, 1, 1}, 1024, 0, s, unsafe.Pointer(&args))
	})
}

// TestCUDAHang: a GPU that hangs in the middle of a run ends it with exit 22 within the limit and ten seconds, with the stacks, what
// the device was at, and an event; the last checkpoint is intact, and the run goes on from it to the bits of one that never hung.
func TestCUDAHang(t *testing.T) {
	l := newLab(t)
	flags := []string{"--backend", "cuda", "--steps", "400", "--checkpoint-every", "3"}
	command := func(name, out string, more ...string) *exec.Cmd {
		c := l.command(out, slices.Concat(flags, more)...)
		c.Env = slices.DeleteFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })
		c.Env = append(c.Env, hangAfter+"="+l.path(out, "steps.jsonl"))
		c.Path = filepath.Join(filepath.Dir(c.Path), name)
		return c
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const hanging = "apr-on-a-gpu-that-hangs"
	if err := os.Symlink(self, filepath.Join(filepath.Dir(l.apr), hanging)); err != nil {
		t.Fatal(err)
	}
	if out, err := command("apr", "whole", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const limit = 3 * time.Second
	c := command(hanging, "hung", "--stall-timeout", limit.String())
	c.Args[0] = c.Path
	begin := time.Now()
	out, err := c.CombinedOutput()
	took := time.Since(begin)
	if code(err) != 22 {
		t.Fatalf("exit %d after %v, want 22\n%s", code(err), took, out)
	}
	t.Logf("exit 22 after %v; the limit is %v", took.Round(10*time.Millisecond), limit)
	if took > limit+20*time.Second { // ten of them for the start
		t.Errorf("it took %v", took)
	}
	contains(t, l.path("hung", "stall.txt"), "no progress for 3", "last operation: ", "device: ", "stacks of all goroutines")
	contains(t, l.path("hung", "events.jsonl"), `"kind":"stall"`)
	if all, _ := filepath.Glob(l.path("hung", "checkpoints", "step-*")); len(all) == 0 {
		t.Fatal("no checkpoint is left")
	}
	if out, err := command("apr", "hung", "--resume", "-q").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !bytes.Equal(l.student(t, "hung"), l.student(t, "whole")) {
		t.Error("the resumed student differs from that of the unbroken run")
	}
}
