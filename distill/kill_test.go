package distill

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/internal/torture"
	"apr/optim"
	runlog "apr/run/log"
	"apr/tensor"
)

// The test binary is also the run that is killed: APR_TEST_RUN names its folder.
func TestMain(m *testing.M) {
	if path := os.Getenv("APR_TEST_RUN"); path != "" {
		if err := runToKill(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(max(1, fault.ExitCode(err)))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runToKill trains in a folder, with a checkpoint after every step, and prints each that is announced.
func runToKill(path string) error {
	c, err := killConfig(path)
	if err != nil {
		return err
	}
	d, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		return err
	}
	defer d.Close()
	if _, err := os.Stat(filepath.Join(c.Output, "manifest.json")); err == nil {
		c.Resume = ResumeAuto
	} else {
		c.Force = true
	}
	r, err := Start(context.Background(), c, d, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		return err
	}
	defer r.Close()
	save := checkpoints.write
	if os.Getenv("APR_TEST_IN_PLACE") != "" {
		save = inPlace
	}
	r.save = func(c checkpoints, st state, tensors []tensor.Source) error {
		err := save(c, st, tensors)
		if err == nil {
			fmt.Println("announced", st.Step)
		}
		return err
	}
	_, err = r.Execute(context.Background())
	return err
}

// killConfig is a run of many steps of a tiny student, with a checkpoint after every one, as a run in the folder dir.
func killConfig(dir string) (Config, error) {
	student, text := filepath.Join(dir, "config.json"), filepath.Join(dir, "data.txt")
	err := errors.Join(
		os.WriteFile(student, []byte(tinyStudent), 0o600),
		os.WriteFile(text, bytes.Repeat([]byte("func add(a, b int) int {\n\treturn a + b\n}\n"), 300), 0o600))
	return Config{
		Teacher: "../testdata/models/gosrc", StudentConfig: student, Data: []string{text}, ChatTemplate: "auto", Packing: true, Shuffle: true,
		Output: filepath.Join(dir, "run"), Loss: device.LossSpec{Alpha: 0.5, Temperature: 1}, Epochs: 1, Steps: 60, BatchSize: 1, GradAccum: 1, SeqLen: 16,
		LR: 1e-2, WarmupSteps: -1, WarmupRatio: 0.1, Schedule: optim.Cosine, MinLRRatio: 0.1,
		AdamW: device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}, MaxGradNorm: 1, Seed: 7,
		CheckpointEvery: 1, KeepCheckpoints: 2, Build: "test",
	}, err
}

// start runs a child in the folder dir and returns the last checkpoint it announced when it ended; killed after a
// while, if kill is positive, counted from its first sign.
func start(t *testing.T, dir string, kill time.Duration, env ...string) (announced int, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(append(os.Environ(), "APR_TEST_RUN="+dir), env...)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	child.Stderr = &stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for armed := false; lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "announced %d", &announced); err != nil {
			t.Fatal(err)
		}
		if !armed && kill > 0 {
			armed = true
			time.AfterFunc(kill, func() { _ = child.Process.Kill() })
		}
	}
	err = child.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL { //nolint:forcetypeassert // of every Unix
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return announced, err
}

func studentIn(t *testing.T, dir string) []byte {
	return studentBytes(t, Config{Output: filepath.Join(dir, "run")})
}

// kills kills runs at random moments and looks at what is left: it returns how often the newest checkpoint was damaged,
// or none, or older than the last one announced. Runs are resumed after every kill; one that ends gives the student of
// the unbroken run.
func kills(t *testing.T, n int, want []byte, env ...string) (corrupt int, first error) {
	t.Helper()
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, uint64(len(env))))
	for i := 0; i < n; {
		announced, err := start(t, dir, time.Duration(random.Int64N(int64(120*time.Millisecond))), env...)
		var exit *exec.ExitError
		switch {
		case err == nil: // it was done before
			if want != nil && !bytes.Equal(studentIn(t, dir), want) {
				corrupt, first = corrupt+1, errors.Join(first, errors.New("the student differs from that of the unbroken run"))
			}
			dir = t.TempDir()
			continue
		case !errors.As(err, &exit) || exit.ExitCode() != -1: // it ended by itself: what the kill before left was not good
			corrupt, first = corrupt+1, errors.Join(first, err)
		default:
			i++
			if err := intact(dir, announced); err != nil {
				corrupt, first = corrupt+1, errors.Join(first, err)
			} else {
				continue
			}
		}
		if want == nil && corrupt > 0 {
			return corrupt, first // a control is caught
		}
		if i++; corrupt > 3 {
			return corrupt, first
		}
		dir = t.TempDir()
	}
	if _, err := start(t, dir, 0, env...); err != nil || want != nil && !bytes.Equal(studentIn(t, dir), want) {
		corrupt, first = corrupt+1, errors.Join(first, fmt.Errorf("the student differs from that of the unbroken run, or there is none: %w", err))
	}
	return corrupt, first
}

// intact requires the newest checkpoint of a killed run to be sound, and no older than the last announced one.
func intact(folder string, announced int) error {
	dir := checkpoints{dir: filepath.Join(folder, "run", "checkpoints"), keep: 2, disk: disk.OS{}}
	st, from, skipped, err := dir.newestOf(dir.verify)
	if err := errors.Join(append(skipped, err)...); err != nil {
		return err
	}
	if st.Step < announced || from == "" {
		return fmt.Errorf("%q after %d steps is the newest, %d was announced", from, st.Step, announced)
	}
	return nil
}

// kill -9 at random moments of a real run: no announced checkpoint is lost, none is damaged, and the killed and resumed
// run comes to the bits of the unbroken one. A writer that overwrites its checkpoint in place shows that damage would
// be seen.
func TestTortureKill(t *testing.T) {
	dir := t.TempDir()
	if _, err := start(t, dir, 0); err != nil {
		t.Fatal(err)
	}
	trials := torture.Trials(5, 200)
	corrupt, err := kills(t, trials, studentIn(t, dir))
	if err != nil {
		t.Error(err)
	}
	broken, cause := kills(t, 200, nil, "APR_TEST_IN_PLACE=1")
	t.Logf("the control: %v", cause)
	torture.Row(t, "kill -9 at random moments of a run; the newest checkpoint sound, none lost, the resumed student the same to the bit", trials, corrupt,
		"in place: "+torture.Caught(t, map[string]bool{"in place": broken > 0}))
}
