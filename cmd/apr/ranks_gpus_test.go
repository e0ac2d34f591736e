package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/collective"
	"apr/device"
	"apr/internal/cli"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

// settle reads distill's options from a command line and an environment, and finds out which rank this process is.
func settle(t *testing.T, environ []string, args ...string) (*distillOptions, *party, error) {
	t.Helper()
	o := &distillOptions{}
	var p *party
	var err error
	c := &cli.Command{Name: "distill", Options: o.table(), EnvPrefix: "APR_DISTILL_"}
	c.Run = func(_ context.Context, e *cli.Env) (cli.Result, error) { p, err = o.party(e); return nil, nil }
	var out, errs bytes.Buffer
	app := &cli.App{Name: "apr", In: strings.NewReader(""), Out: &out, Err: &errs, Environ: environ,
		Commands: []*cli.Command{c}}
	if code := app.Main(append([]string{"distill", "t", "--student", "s", "-d", "d"}, args...)); code != 0 {
		t.Fatalf("%q: exit %d\n%s", args, code, errs.String())
	}
	return o, p, err
}

// haveGPUs makes this machine one with n GPUs.
func haveGPUs(t *testing.T, n int) {
	t.Helper()
	old := gpuCount
	gpuCount = func() (int, error) {
		if n == 0 {
			return 0, errors.New("no driver")
		}
		return n, nil
	}
	t.Cleanup(func() { gpuCount = old })
}

// ranksCase is a call of the command on a machine with gpus GPUs, and what is expected: its rank of world ranks, how
// many ranks it starts on this machine (local), its GPU (device), and where ranks meet; or the refusal.
type ranksCase struct {
	name, env, args string
	gpus            int
	rank, world     int
	local, device   int
	meet            string
	kind            fault.Kind
	says            string
}

func (tt ranksCase) check(t *testing.T) {
	t.Helper()
	contracttest.Cases(t, 1)
	haveGPUs(t, tt.gpus)
	o, p, err := settle(t, strings.Fields(tt.env), strings.Fields(tt.args)...)
	if fault.KindOf(err) != tt.kind || err != nil && !strings.Contains(flat(err), tt.says) &&
		!strings.Contains(flat(err), strings.ReplaceAll(tt.says, " +", "   ")) {
		t.Errorf("%s: %v, want kind %v and %q", tt.name, err, tt.kind, tt.says)
		return
	}
	if err == nil && (p.rank != tt.rank || p.world != tt.world || p.local != tt.local || p.rendezvous != tt.meet ||
		o.Device != tt.device && p.several()) {
		t.Errorf("%s: rank %d of %d with %d here on GPU %d at %q, want %d of %d with %d on %d at %q", tt.name, p.rank,
			p.world, p.local, o.Device, p.rendezvous, tt.rank, tt.world, tt.local, tt.device, tt.meet)
	}
	if err == nil && strings.Contains(tt.args, "--gpus") && tt.args != "--gpus 1" && o.Backend != "cuda" {
		t.Errorf("%s: backend %s", tt.name, o.Backend)
	}
}

// Which ranks a command line, an environment and a number of GPUs make.
func TestWhichRanks(t *testing.T) {
	pet := "PET_NNODES=2 PET_NPROC_PER_NODE=4 PET_NODE_RANK=1 PET_MASTER_ADDR=h PET_MASTER_PORT=9"
	job := "JOB_COMPLETION_INDEX=1 APR_JOB_PODS=3 APR_JOB_RANKS=2 APR_JOB_MASTER=j-0.j APR_JOB_PORT=29400"
	torchrun := "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=h MASTER_PORT=9"
	none := fault.Kind(0)
	for _, tt := range []ranksCase{
		{"all of one GPU is one process", "", "--gpus all", 1, 0, 1, 0, 0, "", none, ""},
		{"all of four", "", "--gpus all", 4, 0, 4, 4, 0, "", none, ""},
		{"two of four", "", "--gpus 2 --device 1", 4, 0, 2, 2, 1, "", none, ""},
		{"all from the second on", "", "--gpus all --device 1", 4, 0, 3, 3, 1, "", none, ""},
		{"one is the old program", "", "--gpus 1", 0, 0, 1, 0, 0, "", none, ""},
		{"more than there are", "", "--gpus 8", 4, 0, 0, 0, 0, "", fault.Unavailable, "--gpus 8: this machine has 4 GPUs"},
		{"more than there are from one on", "", "--gpus 2 --device 3", 4, 0, 0, 0, 0, "", fault.Unavailable,
			"this machine has 1 GPU from number 3 on"},
		{"none", "", "--gpus all", 0, 0, 0, 0, 0, "", fault.Unavailable, "--gpus all: this machine has 0 GPUs"},
		{"two of none", "", "--gpus 2", 0, 0, 0, 0, 0, "", fault.Unavailable, "no driver"},
		{"on the CPU", "", "--gpus 2 --backend cpu", 4, 0, 0, 0, 0, "", fault.Usage, "--gpus 2 with --backend cpu"},
		{"on Vulkan", "", "--gpus 2 --backend vulkan", 4, 0, 0, 0, 0, "", fault.Unavailable, "not built"},
		{"twice", "", "--gpus 2 --world-size 2", 4, 0, 0, 0, 0, "", fault.Usage, "--world-size +2"},
		{"a rank that was started", "APR_RANK_STARTED=1 APR_RANK_DEVICE=3 APR_RANK_SECRET=s APR_DISTILL_RANK=2 " +
			"APR_DISTILL_WORLD_SIZE=4 APR_DISTILL_RENDEZVOUS=h:1", "--gpus 4 --device 1", 0, 2, 4, 0, 3, "h:1", none, ""},
		{"a rank that was started without GPUs", "APR_RANK_STARTED=1 APR_RANK_DEVICE=1 APR_RANK_SECRET=s " +
			"APR_DISTILL_RANK=1 APR_DISTILL_WORLD_SIZE=2 APR_DISTILL_RENDEZVOUS=h:1", "", 0, 1, 2, 0, 0, "h:1", none, ""},
		{"a wrong device", "APR_RANK_STARTED=1 APR_RANK_DEVICE=x", "", 0, 0, 0, 0, 0, "", fault.Usage, "APR_RANK_DEVICE"},

		{"torchrun, GPUs", torchrun, "", 2, 1, 2, 0, 1, "h:9", none, ""},
		{"torchrun and --gpus", torchrun, "--gpus all", 2, 1, 2, 0, 1,
			"h:9", none, ""},
		{"torchrun without GPUs", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=9", "", 0, 0, 0, 0, 0, "",
			fault.Unavailable, "WORLD_SIZE: is 2"},
		{"nobody beside GPUs", "", "", 2, 0, 1, 0, 0, "", none, ""},
		{"machines of PET, a rank for each GPU", pet + " PET_NPROC_PER_NODE=gpu", "", 3, 3, 6, 3, 0, "h:9", none, ""},
		{"machines of PET", pet, "--backend cpu", 0, 4, 8, 4, 0, "h:9", none, ""},
		{"the first of them", pet + " PET_NODE_RANK=0", "--backend cpu", 0, 0, 8, 4, 0, "h:9", none, ""},
		{"without a port", pet + " PET_MASTER_PORT=", "--backend cpu", 0, 4, 8, 4, 0, "h:29500", none, ""},
		{"one machine of PET", "PET_NNODES=1 PET_NPROC_PER_NODE=4 PET_NODE_RANK=0", "--backend cpu", 0, 0, 4, 4, 0, "", none,
			""},
		{"an instruction to torchrun alone", "PET_NPROC_PER_NODE=4", "--backend cpu", 0, 0, 1, 0, 0, "", none, ""},
		{"PET without its number", pet + " PET_NODE_RANK=", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Usage,
			"PET_NODE_RANK: is not set"},
		{"PET without an address", pet + " PET_MASTER_ADDR=", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Usage,
			"PET_MASTER_ADDR: is not set"},
		{"a rank for each GPU of none", pet + " PET_NPROC_PER_NODE=gpu", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Usage,
			"one rank for each GPU"},
		{"a rank for each core", pet + " PET_NPROC_PER_NODE=cpu", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Unavailable,
			"PET_NPROC_PER_NODE"},
		{"an elastic PET", pet + " PET_NNODES=1:4", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Unavailable, "PET_NNODES"},

		{"pods of a Job", job, "--backend cpu", 0, 2, 6, 2, 0, "j-0.j:29400", none, ""},
		{"a Job without a count", job + " APR_JOB_PODS=", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Usage,
			"APR_JOB_PODS: is not set: a Job gives its pods a number"},
		{"a Job without an index", job + " JOB_COMPLETION_INDEX=", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Usage,
			"JOB_COMPLETION_INDEX: is not set"},
		{"a Job of one pod", job + " APR_JOB_PODS=1 JOB_COMPLETION_INDEX=0", "--backend cpu", 0, 0, 2, 2, 0, "", none, ""},
		{"a pod too many", job + " JOB_COMPLETION_INDEX=3", "--backend cpu", 0, 0, 0, 0, 0, "", fault.Usage, "is 3"},
		{"a part of a Job", "JOB_COMPLETION_INDEX=1", "--backend cpu", 0, 0, 1, 0, 0, "", none, ""},
	} {
		tt.check(t)
	}
}

// The command warns if --world-size counts the ranks of one machine while the launcher counts the ranks of all
// machines.
func TestFlagsBesideALauncher(t *testing.T) {
	const h, here = "h:1", "127.0.0.1:1"
	for _, tt := range []struct{ env, meet, says string }{
		{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", h, "--rank 1 of --world-size 2, and this process is rank 3 of 4 by torchrun"},
		{"SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 SLURM_LOCALID=0", h, "rank 2 of 4 by a Slurm step"},
		{"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0", here, "rank 0 of 2 by a Slurm step"},
		{"NODE_RANK=0 NNODES=2", h, "rank 0 of 2"},
		{"FOO_RANK=0 FOO_SIZE=4", h, "--world-size 2 beside FOO_RANK=0 and FOO_SIZE=4"},
		{"NNODES=3", here, "NNODES=3"},
		{"NNODES=3", h, ""},
		{"RANK=1 WORLD_SIZE=2", here, ""},
		{"FOO_RANK=1 FOO_SIZE=2", h, ""},
		{"", here, ""},
		{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 APR_RANK_STARTED=1", here, ""},
	} {
		contracttest.Cases(t, 1)
		env, says := tt.env, tt.says
		words := append(strings.Fields(env), "APR_RANK_SECRET=s")
		_, p, err := settle(t, words, "--rank", "1", "--world-size", "2", "--rendezvous", tt.meet, "--backend", "cpu")
		if err != nil {
			t.Errorf("%s: %v", env, err)
			continue
		}
		if got := strings.Join(p.alone.Notes, "; "); (says == "") != (got == "") || !strings.Contains(got, says) {
			t.Errorf("%s: %q, want %q", env, got, says)
		}
	}
}

// flat is an error with its hint.
func flat(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Error() + " " + f.Hint
	}
	return err.Error()
}

// atFolder makes a rank that meets in dir.
func atFolder(t *testing.T, dir string, rank, world int, wait time.Duration) *party {
	t.Helper()
	f, err := newFolder("//" + dir)
	if err != nil {
		t.Fatal(err)
	}
	f.every = 10 * time.Millisecond
	p := &party{rank: rank, world: world, wait: wait, silence: time.Second, shared: f}
	if err := p.open(&cli.Env{Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.close(nil) })
	return p
}

// Ranks meet in a folder; what an earlier run left there does not keep them apart.
func TestMeetInFolder(t *testing.T) {
	for _, tt := range []struct{ name, left string }{
		{"empty", ""},
		{"an address that nobody listens at", `{"addr":"127.0.0.1:1","secret":"00","who":"x"}`},
		{"half a file", `{"addr":"127.`},
	} {
		contracttest.Cases(t, 1)
		dir := t.TempDir()
		if tt.left != "" {
			if err := os.WriteFile(filepath.Join(dir, "apr-rendezvous.json"), []byte(tt.left), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := make(chan error, 2)
		join := func(p *party) {
			comm, err := p.meet(context.Background(), nil)
			if err == nil {
				err = errors.Join(comm.Barrier(), comm.Close())
			}
			got <- err
		}
		late := atFolder(t, dir, 1, 2, 10*time.Second)
		go join(late) // before rank 0 is there
		time.Sleep(50 * time.Millisecond)
		go join(atFolder(t, dir, 0, 2, 10*time.Second))
		for range 2 {
			if err := <-got; err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
	}
}

// Ranks that do not meet say whether the folder is the same one.
func TestFolderIsNotShared(t *testing.T) {
	ctx := context.Background()
	a, b := t.TempDir(), t.TempDir()
	_, err := atFolder(t, a, 0, 3, 100*time.Millisecond).meet(ctx, nil)
	for _, want := range []string{"ranks 1, 2 of 3 did not arrive", "has no trace of rank 1, 2", "is not shared"} {
		if fault.KindOf(err) != fault.Network || !strings.Contains(flat(err), want) {
			t.Errorf("%q: want %q", flat(err), want)
		}
	}
	_, err = atFolder(t, b, 1, 3, 100*time.Millisecond).meet(ctx, nil)
	if fault.KindOf(err) != fault.Network || !strings.Contains(flat(err), "saw no rank 0") ||
		!strings.Contains(flat(err), "is not shared") {
		t.Errorf("%v", flat(err))
	}
	dir := t.TempDir()
	_ = atFolder(t, dir, 1, 3, time.Second) // it leaves its mark and does not come
	_, err = atFolder(t, dir, 0, 3, 100*time.Millisecond).meet(ctx, nil)
	if !strings.Contains(flat(err), "in the folder were rank 1") || !strings.Contains(flat(err), "trace of rank 2:") {
		t.Errorf("%v", flat(err))
	}
	contracttest.Cases(t, 3)
}

// Bad folders, a folder of another run, and a rank of another one.
func TestFolderRefuses(t *testing.T) {
	no := "//" + t.TempDir() + "/no"
	for text, kind := range map[string]fault.Kind{"x": fault.Usage, "//": fault.Usage, no: fault.NotFound} {
		if _, err := newFolder(text); fault.KindOf(err) != kind {
			t.Errorf("%q: %v, want kind %v", text, err, kind)
		}
	}
	dir := t.TempDir()
	zero := atFolder(t, dir, 0, 2, 2*time.Second)
	f, _ := newFolder("//" + dir)
	_, _, err := f.open(0)
	if fault.KindOf(err) != fault.Usage || !strings.Contains(flat(err), "another run meets there") {
		t.Errorf("%v", err)
	}
	other := atFolder(t, dir, 1, 2, 2*time.Second)
	done := make(chan error, 1)
	go func() {
		_, err := zero.meet(context.Background(), []collective.Field{{Name: "data", Value: "a"}})
		done <- err
	}()
	_, err = other.meet(context.Background(), []collective.Field{{Name: "data", Value: "b"}})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), "data") {
		t.Errorf("a rank with other data: %v", err)
	}
	if err := <-done; fault.KindOf(err) != fault.Invalid {
		t.Errorf("rank 0: %v", err)
	}
	contracttest.Cases(t, 5)
}

// Ranks that only teach plan the step with the share that a learning rank has of the training state.
func TestShareOfTeachingRank(t *testing.T) {
	for rank := range 4 {
		want := device.Share{Rank: rank % 2, World: 2}
		contracttest.Cases(t, 1)
		p := &party{rank: rank, world: 4}
		if err := p.teach(2, false); err != nil {
			t.Fatal(err)
		}
		if got := p.share(); got != want {
			t.Errorf("rank %d of 4, two of which teach: %+v, want %+v", rank, got, want)
		}
	}
}
