//go:build emulate || gpu

package blas

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"apr/device/cuda/driver"
)

// rig is a device with cublasLt.
type rig struct {
	t         testing.TB
	ctx       *driver.Context
	lt        *driver.Lt
	stream    driver.Stream
	workspace uint64
	rng       *rand.Rand
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir := findDriver(t)
	d, err := driver.Open()
	if err != nil {
		t.Fatal(err)
	}
	lt, report, err := driver.OpenLt(d.Version())
	if err != nil {
		t.Fatal(err)
	}
	if lt.Path() != report.Path || !strings.HasPrefix(lt.Path(), dir) || lt.Version() < 120000 {
		t.Fatalf("opened %s of version %d, reported %+v", lt.Path(), lt.Version(), report)
	}
	ctx, err := d.NewContext(0)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: ctx, lt: lt, rng: rand.New(rand.NewPCG(3, 4))}
	t.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
	})
	r.do(func(th *driver.Thread) (err error) {
		if r.stream, err = th.NewStream(); err != nil {
			return err
		}
		r.workspace, err = th.Alloc(workspaceBytes, false)
		return err
	})
	return r
}

func (r *rig) do(f func(*driver.Thread) error) {
	r.t.Helper()
	if err := r.ctx.Do(f); err != nil {
		r.t.Fatal(err)
	}
}

// open makes a Library that logs to the result.
func (r *rig) open(o Options) (*Library, *strings.Builder) {
	r.t.Helper()
	log := new(strings.Builder)
	o.Workspace, o.Bytes, o.Device = r.workspace, workspaceBytes, "emulator"
	o.Log = func(line string) { fmt.Fprintln(log, line) }
	var l *Library
	r.do(func(th *driver.Thread) (err error) {
		l, err = Open(th, r.lt, o)
		return err
	})
	r.t.Cleanup(func() { r.do(l.Close) })
	return l, log
}
