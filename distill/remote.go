package distill

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"apr/corpus"
	"apr/device"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/teacher"
	"apr/teacher/cache"
	"apr/teacher/remote"
)

// Remote is a teacher in other processes, which bring its rows.
type Remote struct {
	// Dial connects to them. Each sign of life is told to alive.
	Dial func(alive func(what string)) (*remote.Client, error)
	// Heads is the folder that keeps what else they send of the teacher, by its hash.
	Heads string
}

// openRemote connects to the teacher and opens what it sends of itself.
func (in *inputs) openRemote(c Config) error {
	client, err := c.Remote.Dial(c.Watch.Doing)
	if err != nil {
		return err
	}
	digest := client.Header.Digest()
	in.cache = &said{Header: client.Header, Dir: c.FromCache, SHA256: hex.EncodeToString(digest[:]), client: client,
		rows: brought{client, context.Background()}}
	dir := filepath.Join(c.Remote.Heads, hex.EncodeToString(client.HeadSHA256[:]))
	if err := bringHead(client, dir); err != nil {
		return err
	}
	return in.openHeadOf(c, dir)
}

// bringHead copies the head of the teacher to a folder that its hash names, unless it is there.
func bringHead(client *remote.Client, dir string) error {
	path := filepath.Join(dir, headFile)
	if sum, size, err := hashFile(path); err == nil && size == client.HeadBytes &&
		sum == hex.EncodeToString(client.HeadSHA256[:]) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.In(fault.IO, dir, "cannot be created").Because(err)
	}
	out, err := atomicfile.CreatePrivate(path, true)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Expect(client.HeadBytes); err != nil {
		return err
	}
	if err := client.ReadHead(out); err != nil {
		return err
	}
	return out.Commit()
}

// checkRemote refuses a teacher in other processes that draws otherwise than asked for. What is not asked for is as
// the teacher has it.
func (in *inputs) checkRemote(c Config) error {
	if in.cache.client == nil {
		return nil
	}
	asked, names := in.cache.Header, []string{"kind", "draws", "seed"}
	if k := c.LogitsJob.Kind; k != "" {
		asked.Kind = k
	}
	if asked.Kind == cache.Draws && in.cache.Kind == cache.Draws {
		asked.Seed = c.Seed
		if n := c.LogitsJob.Draws; n != 0 {
			asked.Draws = n
		}
	}
	return in.sameRows(asked, names...)
}

// sameRows refuses rows that differ in one of the named fields from what is asked for. A teacher in other processes is
// started anew; nothing has to be precomputed.
func (in *inputs) sameRows(asked cache.Header, names ...string) error {
	err := in.cache.Same(in.cache.Dir, asked, names...)
	if f := (*fault.Error)(nil); in.cache.client != nil && errors.As(err, &f) {
		return f.WithHint("give this run the options that the teacher was started with, or start another teacher with " +
			"this run's: apr teach TEACHER -d DATA")
	}
	return err
}

// brought are rows that a client brings.
type brought struct {
	*remote.Client
	ctx context.Context // of waiting
}

func (b brought) Drawn(k cache.Key) (d cache.Drawn, err error) {
	data, err := b.Row(b.ctx, k)
	if err != nil {
		return d, err
	}
	d, err = cache.DecodeDraws(b.Header, data)
	return d, b.odd(k, err)
}

func (b brought) Hidden(k cache.Key, dst []float32) error {
	data, err := b.Row(b.ctx, k)
	if err != nil {
		return err
	}
	return b.odd(k, cache.DecodeHidden(b.Header, dst, data))
}

// odd is the fault of a row that no teacher with this header says.
func (b brought) odd(k cache.Key, err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Format, "the teacher sent a row %x… that its header does not describe", k[:6]).Because(err).
		WithID("E-TEACH-014")
}

// follow lets a teacher in other processes run ahead of the leg, row by row up to its last step.
func (l *leg) follow(last int) error {
	in := l.run.in
	if l.teacher == nil || in.cache == nil || in.cache.client == nil {
		return nil
	}
	c := l.run.Config
	ahead, err := corpus.NewLoader(in.rows, corpus.LoaderOptions{BatchRows: 1, Shuffle: c.Shuffle, Seed: c.Seed})
	if err != nil {
		return err
	}
	if err := ahead.Seek(l.loader.Position()); err != nil {
		return err
	}
	left, one := (last-l.trainer.Steps)*c.Rows(), rowBatch(1, c.SeqLen, c.DocumentMask)
	in.cache.client.Start(func() (cache.Key, error) {
		if left == 0 {
			return cache.Key{}, io.EOF
		}
		left--
		fillBatch(one, 0, in.rows, ahead.NextRows()[0])
		return cache.KeyOf(one.Tokens, one.Starts), nil
	})
	return nil
}

// fetch lets a teacher read what it says of a batch, which begins at a position of the data, or ends waiting for it
// when ctx ends: the batch is then the next one again.
func (l *leg) fetch(ctx context.Context, f teacher.Fetcher, b corpus.Batch, from corpus.Position) error {
	in := l.run.in
	if in.cache == nil || in.cache.client == nil {
		return f.Fetch(b)
	}
	rows := brought{in.cache.client, ctx}
	switch t := f.(type) {
	case *teacher.States:
		t.From = rows
	case *teacher.Drawn:
		t.From = rows
	}
	err := f.Fetch(b)
	if fault.KindOf(err) == fault.Stopped {
		err = errors.Join(err, l.loader.Seek(from))
	}
	for _, note := range in.cache.client.Notes() {
		l.run.obs.Message("warning: %s", note)
		err = errors.Join(err, l.run.dir.Event("warning", "teacher's connection", nil, note))
	}
	return err
}

// Lesson is a teacher that is ready to say rows to others.
type Lesson struct {
	Header cache.Header
	Head   remote.Head
	Has    func(cache.Key) bool
	Make   func([]cache.Key) ([][]byte, error) // encoded rows of up to Header.PassRows distinct keys
}

// Teach opens a teacher and its data, loads it, and lets serve say its rows to others.
func Teach(ctx context.Context, c Config, job CacheJob, dev device.Device, obs Observer,
	serve func(Lesson) error) (err error) {
	if err := checkCacheJob(c, job); err != nil {
		return err
	}
	obs = watched{obs, c.Watch}
	obs.Phase("opening the teacher and the data")
	p := &precomputation{c: c, job: job, dev: dev}
	if p.in, err = openForCache(ctx, c, obs); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.in.close()) }()
	if err := p.describe(); err != nil {
		return err
	}
	p.header.Rows, p.header.RowsSHA256 = len(p.keys), cache.HashKeys(p.keys)
	if err := p.header.Check(c.Teacher); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "apr-teach-*")
	if err != nil {
		return fault.In(fault.IO, os.TempDir(), "no temporary folder can be made").Because(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeHead(dir, p.in.teacher, job.Kind == cache.Hidden, c.Writer); err != nil {
		return err
	}
	l := Lesson{Header: p.header, Head: remote.Head{Path: filepath.Join(dir, headFile)}}
	sum, size, err := hashFile(l.Head.Path)
	if err != nil {
		return err
	}
	if _, err := hex.Decode(l.Head.SHA256[:], []byte(sum)); err != nil {
		return err
	}
	l.Head.Bytes = size
	obs.Phase("loading the teacher")
	if err := p.load(); err != nil {
		return err
	}
	defer p.batch.Free(dev)
	at := make(map[cache.Key]int, len(p.keys))
	for i, k := range p.keys {
		at[k] = p.at[i]
	}
	l.Has = func(k cache.Key) bool { _, ok := at[k]; return ok }
	l.Make = func(keys []cache.Key) ([][]byte, error) {
		var rows []int
		for _, k := range keys {
			rows = append(rows, at[k])
		}
		return p.passOf(keys, rows)
	}
	obs.Phase("teaching")
	return serve(l)
}
