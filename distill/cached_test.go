package distill

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/teacher"
	"apr/teacher/cache"
	"apr/tensor"
)

// smallConfig is tinyConfig on a text of n short documents.
func smallConfig(t *testing.T, n int) Config {
	t.Helper()
	c := tinyConfig(t)
	data := filepath.Join(t.TempDir(), "data.jsonl")
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `{"text":"package p%d\n\nfunc f%d(x int) (int, error) {\n\treturn x * %d, nil\n}\n"}`+"\n", i, i, i*i)
	}
	if err := os.WriteFile(data, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Data = []string{data}
	return c
}

// cacheOf makes the cache of a run's rows.
func cacheOf(t *testing.T, c Config, job CacheJob, workers int) (string, *Cached) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cache")
	out, err := precompute(t, c, job, workers, dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !out.Sealed || out.Missing != 0 || out.Written == 0 {
		t.Fatalf("%+v", out)
	}
	return dir, out
}

func precompute(t *testing.T, c Config, job CacheJob, workers int, dir string, stopAfter int) (*Cached, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d, err := cpu.New(cpu.Options{Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c.Output, c.Student, c.StudentConfig = dir, "", ""
	if job.Of == 0 {
		job.Of = 1
	}
	return Precompute(ctx, c, job, d, &quiet{stopAfter: stopAfter, stop: cancel})
}

// cached is c with a cache instead of its teacher.
func cached(t *testing.T, c Config, dir string) Config {
	c = in(t, c)
	c.Teacher, c.FromCache = "", dir
	return c
}

// TestHiddenCacheIsTheLiveTeacher: from hidden states and the head, every divergence has the live run's losses and
// student, bit for bit, without the teacher's file.
func TestHiddenCacheIsTheLiveTeacher(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"forward KL":                        func(c *Config) {},
		"quantised head":                    func(c *Config) { c.Teacher = "../testdata/models/gosrc-q4_k_m.gguf"; c.Steps = 3 },
		"jsd, T 2":                          func(c *Config) { c.Loss.Divergence, c.Loss.Beta, c.Loss.Temperature, c.Steps = 2, 0.3, 2, 3 },
		"documents apart, a document a row": func(c *Config) { c.DocumentMask, c.Packing, c.Steps = true, false, 3 },
		"accumulated":                       func(c *Config) { c.GradAccum, c.BatchSize, c.Steps, c.DocumentMask = 3, 1, 3, true },
	} {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := smallConfig(t, 40)
			change(&c)
			dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Hidden}, 2)
			live, q, err := runOnce(t, c, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			other := cached(t, c, dir)
			out, p, err := runOnce(t, other, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(studentBytes(t, c), studentBytes(t, other)) {
				t.Error("the students differ")
			}
			if len(q.steps) != len(p.steps) || live.StepsCompleted != out.StepsCompleted {
				t.Fatalf("%d and %d steps", len(q.steps), len(p.steps))
			}
			for i := range q.steps {
				if x, y := q.steps[i], p.steps[i]; x.Loss != y.Loss || x.KL != y.KL || x.CE != y.CE || x.GradNorm != y.GradNorm {
					t.Errorf("step %d: %v and %v", i, x, y)
				}
			}
		})
	}
}

// TestDrawsAreTheRows: what is drawn does not depend on workers, on how rows fall on shards, or on who makes them,
// and a process that was stopped goes on.
func TestDrawsAreTheRows(t *testing.T) {
	c := smallConfig(t, 60)
	job := CacheJob{Kind: cache.Draws, Draws: 50, Entropy: true}
	dir, out := cacheOf(t, c, job, 1)
	t.Logf("%.1f bytes a position of %d", *out.PerPosition, out.Positions)
	small := job
	small.ShardBytes = 1 // a shard a pass
	parts := filepath.Join(t.TempDir(), "parts")
	if _, err := precompute(t, c, small, 2, parts, inEvaluation); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("stopped: %v", err)
	}
	if _, err := cache.Open(parts); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "not sealed: 1 of") {
		t.Fatalf("not sealed: %v", err)
	}
	for i := range 3 {
		one := small
		one.Shard, one.Of = (i+2)%3, 3
		got, err := precompute(t, c, one, 2, parts, 0)
		if err != nil || got.Sealed != (i == 2) || got.Written == 0 {
			t.Fatalf("part %d: %+v, %v", i, got, err)
		}
	}
	again, err := precompute(t, c, small, 2, parts, 0)
	if err != nil || again.Written != 0 || !again.Sealed {
		t.Fatalf("again: %+v, %v", again, err)
	}
	x, err := cache.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	y, err := cache.Open(parts)
	if err != nil {
		t.Fatal(err)
	}
	if err := y.Verify(); err != nil {
		t.Error(err)
	}
	if len(y.Keys()) != len(x.Keys()) || y.Header.Shards() < 3 {
		t.Fatalf("%d and %d rows, %d shards", len(x.Keys()), len(y.Keys()), y.Header.Shards())
	}
	for _, k := range x.Keys() {
		a, err := x.Drawn(k)
		if err != nil {
			t.Fatal(err)
		}
		b, err := y.Drawn(k)
		if err != nil {
			t.Fatal(err)
		}
		if !same(a, b) {
			t.Fatalf("row %x differs", k[:4])
		}
	}
	st, err := os.Stat(filepath.Join(parts, "manifest.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("manifest: %v, %v", st.Mode(), err)
	}
	if st, err = os.Stat(parts); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", st.Mode(), err)
	}
}

// TestDamagedCache: a run that meets a row which was changed after the cache was opened ends with the file and the
// offset, and believes nothing; so does one that begins with a shard cut short.
func TestDamagedCache(t *testing.T) {
	c := smallConfig(t, 40)
	dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Hidden}, 0)
	shards, err := filepath.Glob(filepath.Join(dir, "*.shard"))
	if err != nil || len(shards) == 0 {
		t.Fatal(shards, err)
	}
	good, err := os.ReadFile(shards[0])
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(good)
	for i := len(good) / 4; i < len(good); i += 1000 { // every row, and not the index
		changed[i] ^= 1
	}
	for name, b := range map[string][]byte{"changed": changed, "cut": good[:len(good)-1]} {
		if err := os.WriteFile(shards[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := runOnce(t, cached(t, c, dir), 0, 0); fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), filepath.Base(shards[0])) {
			t.Errorf("%s: %v", name, err)
		}
		contracttest.Cases(t, 1)
	}
}

// TestForgedShard: a shard that was changed together with its rows' checksums is trained on where nobody pinned the
// cache; where its manifest is pinned, the run ends with the shard's name before its first step.
func TestForgedShard(t *testing.T) {
	c := smallConfig(t, 40)
	dir, made := cacheOf(t, c, CacheJob{Kind: cache.Hidden}, 0)
	shards, err := filepath.Glob(filepath.Join(dir, "*.shard"))
	if err != nil || len(shards) == 0 {
		t.Fatal(shards, err)
	}
	for _, path := range shards {
		forgeShard(t, path)
	}
	if _, _, err := runOnce(t, cached(t, c, dir), 0, 0); err != nil {
		t.Errorf("not pinned: %v", err)
	}
	for name, pin := range map[string]string{"pinned": made.ManifestSHA, "another pin": strings.Repeat("a", 64)} {
		contracttest.Cases(t, 1)
		p := cached(t, c, dir)
		p.CachePin = pin
		kind, want := fault.Format, ".shard: its SHA-256 is"
		if pin != made.ManifestSHA {
			kind, want = fault.Invalid, "the pinned one is"
		}
		if _, _, err := runOnce(t, p, 0, 0); fault.KindOf(err) != kind || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		steps, err := os.ReadFile(filepath.Join(p.Output, "steps.jsonl"))
		if len(steps) > 0 || err != nil && !os.IsNotExist(err) {
			t.Errorf("%s: trained: %s %v", name, steps, err)
		}
	}
}

// forgeShard changes a bit of every row of a shard, and its checksums with it. docs/cache-format.md has the offsets.
func forgeShard(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	index := 48 * (1 + int(binary.LittleEndian.Uint32(b[12:])))
	for e := 48; e < index; e += 48 {
		at, n := binary.LittleEndian.Uint64(b[e+32:]), uint64(binary.LittleEndian.Uint32(b[e+40:]))
		row := b[at : at+n]
		row[2] ^= 1
		binary.LittleEndian.PutUint32(b[e+44:], crc32.Checksum(row, castagnoli))
	}
	binary.LittleEndian.PutUint32(b[index:], crc32.Checksum(b[:index], castagnoli))
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestStepsBeforeADamagedRow: a row of a cache that cannot be read loses no step before it: they are checkpointed, and
// once the cache is whole again the run goes on to the same bits.
func TestStepsBeforeADamagedRow(t *testing.T) {
	contracttest.Cases(t, 1)
	c := smallConfig(t, 120)
	c.Steps, c.BatchSize, c.Shuffle, c.CheckpointEvery = 24, 4, false, 1000
	dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Hidden}, 0)
	want, same := mustRun(t, cached(t, c, dir), 0)
	shards, err := filepath.Glob(filepath.Join(dir, "*.shard"))
	if err != nil || len(shards) != 1 {
		t.Fatal(shards, err)
	}
	good, err := os.ReadFile(shards[0])
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(good)
	for i := len(good) / 2; i < len(good); i += 1000 { // the second half of the rows
		changed[i] ^= 1
	}
	if err := os.WriteFile(shards[0], changed, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := cached(t, c, dir)
	if _, _, err := runOnce(t, broken, 0, 0); fault.KindOf(err) != fault.Format {
		t.Fatal(err)
	}
	names := checkpointsOf(t, broken)
	if len(names) != 1 || strings.HasSuffix(names[0], "000000") || strings.HasSuffix(names[0], "000024") {
		t.Fatalf("checkpoints %v", names)
	}
	if err := os.WriteFile(shards[0], good, 0o600); err != nil {
		t.Fatal(err)
	}
	broken.Resume = ResumeAuto
	got, bits := mustRun(t, broken, 0)
	if got.CE != want.CE || !bytes.Equal(bits, same) {
		t.Errorf("resumed %v, in one piece %v", got, want)
	}
}

// TestHeadOfAnotherTeacher: what lies in the folder of a cache and is of another teacher is not taken for this one's.
func TestHeadOfAnotherTeacher(t *testing.T) {
	c := smallConfig(t, 40)
	theirs := smallConfig(t, 40)
	theirs.Teacher = changedCopy(t, tensor.BF16, noisy(0.5))
	for _, kind := range []string{cache.Hidden, cache.Draws} {
		contracttest.Cases(t, 1)
		job := CacheJob{Kind: kind}
		if kind == cache.Draws {
			job.Draws, job.Entropy = 8, true
		}
		dir, _ := cacheOf(t, c, job, 0)
		other, _ := cacheOf(t, theirs, job, 0)
		head, err := os.ReadFile(filepath.Join(other, headFile))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, headFile), head, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := runOnce(t, cached(t, c, dir), 0, 0); fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), headFile) {
			t.Errorf("%v, trained on: %v", kind, err)
		}
		f, err := modelfile.Open(c.Teacher)
		if err != nil {
			t.Fatal(err)
		}
		err = writeHead(dir, f, kind == cache.Hidden, "apr/test")
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), headFile) {
			t.Errorf("%v, made: %v", kind, err)
		}
		if err := os.Remove(filepath.Join(dir, headFile)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(writeHead(dir, f, kind == cache.Hidden, "apr/test"), writeHead(dir, f, kind == cache.Hidden, "apr/test"), f.Close()); err != nil {
			t.Errorf("%v, made twice: %v", kind, err)
		}
	}
}

// TestDamagedHeadOfDraws: what a cache of draws keeps of its teacher is what guards against a copy of it.
func TestDamagedHeadOfDraws(t *testing.T) {
	c := smallConfig(t, 40)
	dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Draws, Draws: 8, Entropy: true}, 0)
	path := filepath.Join(dir, headFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]int{"a checksum": len(good) - 1, "values": len(good) / 2} {
		contracttest.Cases(t, 1)
		b := bytes.Clone(good)
		b[at] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := runOnce(t, cached(t, c, dir), 0, 0); fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), headFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func same(a, b cache.Drawn) bool {
	if len(a.Entries) != len(b.Entries) || len(a.Entropy) != len(b.Entropy) {
		return false
	}
	for i := range a.Entries {
		if a.Entries[i] != b.Entries[i] {
			return false
		}
	}
	for i := range a.Entropy {
		if a.Entropy[i] != b.Entropy[i] {
			return false
		}
	}
	return true
}

// TestRunFromDraws: a run from draws learns about what the live run learns, and reports an unbiased KL, or the
// cross-entropy.
func TestRunFromDraws(t *testing.T) {
	c := smallConfig(t, 120)
	c.Steps, c.BatchSize = 20, 4
	live, q, err := runOnce(t, c, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, entropy := range []bool{true, false} {
		dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Draws, Draws: 50, Entropy: entropy}, 0)
		other := cached(t, c, dir)
		out, p, err := runOnce(t, other, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !(math.Abs(out.CE-live.CE) < 0.03) {
			t.Errorf("CE %g, live %g", out.CE, live.CE)
		}
		for i, s := range p.steps {
			if entropy && !(math.Abs(float64(s.KL-q.steps[i].KL)) < 0.08) || !entropy && (s.KL.Finite() || s.SoftCE == nil || !(*s.SoftCE > q.steps[i].KL)) {
				t.Errorf("entropy %v, step %d: KL %v, live %v, soft CE %v", entropy, i, s.KL, q.steps[i].KL, s.SoftCE)
			}
			if want := 0.5*float64(s.CE) + 0.5*float64(s.KL); entropy && !(math.Abs(float64(s.Loss)-want) < 1e-9) {
				t.Errorf("step %d: loss %v, its terms %v", i, s.Loss, want)
			}
		}
		contracttest.Cases(t, 1)
	}
}

// TestHeadOfEveryFamily: what a cache keeps of a teacher of any family makes the live teacher's logits of its hidden
// states, bit for bit.
func TestHeadOfEveryFamily(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/golden/*/*/model.safetensors")
	if err != nil || len(dirs) < 20 {
		t.Fatal(dirs, err)
	}
	d := newCPU(t)
	s := d.NewStream()
	for _, path := range append(dirs, "../testdata/models/gosrc-q4_k_m.gguf") {
		f, err := modelfile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		dir := t.TempDir()
		if err := writeHead(dir, f, true, "test"); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		head, _, err := openHead(dir)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if err := openedWithout(t, f); err != nil {
			t.Errorf("%s, draws: %v", path, err)
		}
		defer head.Close()
		logits := func(w model.Weights, v int) []float32 {
			m, err := model.LoadFrozen(d, w, device.TeacherWeights)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			x := s.Temp("x", device.Activations, tensor.F32, 5, f.Config.Hidden)
			z := s.Temp("z", device.Logits, tensor.F32, 5, v)
			host := make([]float32, 5*f.Config.Hidden)
			for i := range host {
				host[i] = float32(math.Sin(float64(i))) * 3
			}
			s.Upload(x, host)
			m.Logits(s, z, x)
			out := make([]float32, 5*v)
			if err := s.Download(out, z); err != nil {
				t.Fatal(err)
			}
			s.Release(z)
			s.Release(x)
			return out
		}
		v := f.Config.Vocab - 3
		if !slices.Equal(logits(f, v), logits(head, v)) {
			t.Errorf("%s: the logits differ", path)
		}
		contracttest.Cases(t, 1)
	}
}

// openedWithout writes and opens what a cache of draws keeps of a teacher.
func openedWithout(t *testing.T, f *modelfile.Files) error {
	dir := t.TempDir()
	if err := writeHead(dir, f, false, "test"); err != nil {
		return err
	}
	head, _, err := openHead(dir)
	if err != nil {
		return err
	}
	return head.Close()
}

// TestCachedStepIsPlanned: what the plan of a step from a cache says of the teacher's weights and of logits is what
// the step holds; draws have no weights.
func TestCachedStepIsPlanned(t *testing.T) {
	c := smallConfig(t, 20)
	for _, job := range []CacheJob{{Kind: cache.Hidden}, {Kind: cache.Draws, Draws: 50}} {
		dir, _ := cacheOf(t, c, job, 0)
		one := cached(t, c, dir)
		d, err := cpu.New(cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		in, err := openInputs(context.Background(), one, d, &quiet{})
		if err != nil {
			t.Fatal(err)
		}
		defer in.close()
		one.Ensemble.said = in.cache
		r := &Run{Config: one, dev: d, in: in, stream: d.NewStream(), steps: 1}
		teachers, student, err := in.models(one, d)
		if err != nil {
			t.Fatal(err)
		}
		l := &leg{run: r, name: LegStudent, student: student, teacher: one.Ensemble.of(teachers, d.Info(), one.SeqLen, 1)}
		if err := l.prepare(); err != nil {
			t.Fatal(err)
		}
		b, err := l.loader.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.teacher.(teacher.Fetcher).Fetch(b); err != nil {
			t.Fatal(err)
		}
		if _, err := l.trainer.Apply(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		_, peak := d.Memory()
		for _, k := range []device.Component{device.TeacherWeights, device.Logits} {
			if want := in.planned.Record.Peak[k]; peak[k] != want {
				t.Errorf("%s: %d bytes of %s, planned %d", job.Kind, peak[k], k, want)
			}
		}
		if n := peak[device.TeacherWeights]; (n == 0) != (job.Kind == cache.Draws) {
			t.Errorf("%s: %d bytes of the teacher", job.Kind, n)
		}
		contracttest.Cases(t, 1)
	}
}
