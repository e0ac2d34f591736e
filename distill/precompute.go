package distill

import (
	"context"
	"errors"
	"time"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/teacher/cache"
)

// CacheJob says what of a teacher is kept, and which part of it this process makes.
type CacheJob struct {
	Kind       string      // cache.Draws or cache.Hidden
	Draws      int         // of a position
	Entropy    bool        // draws come with the teacher's entropy
	Shard, Of  int         // this process makes the shards whose number is Shard modulo Of
	Store      cache.Store // where the cache lies; nil: the folder Config.Output
	ShardBytes int64       // of a shard, about; a pass of the teacher is not larger. 0: 64 MB, or one pass
}

// shardBytes are those of a shard, about.
const shardBytes = 64_000_000

// Cached is what a precomputation did.
type Cached struct {
	Cache        string   `json:"cache"`
	Kind         string   `json:"kind"`
	Rows         int      `json:"rows"`
	Positions    int64    `json:"positions"`
	Shards       int      `json:"shards"`
	Written      int      `json:"shards_written"` // by this process
	Missing      int      `json:"shards_missing"`
	Sealed       bool     `json:"sealed"`
	Bytes        int64    `json:"bytes"` // of all shards that are there
	PerPosition  *float64 `json:"bytes_per_position"`
	TokensPerSec *float64 `json:"tokens_per_second"` // of this process
	// Of the device, while the teacher's body and head computed, and the time of a position's draws
	Forward     *float64                `json:"forward_tokens_per_second,omitempty"`
	DrawsUS     *float64                `json:"draws_us_per_token,omitempty"`
	Seconds     float64                 `json:"duration_seconds"`
	Inputs      map[string]runlog.Input `json:"inputs"`
	ManifestSHA string                  `json:"manifest_sha256"` // empty: not sealed
	Teacher     string                  `json:"teacher"`
	Way         *PassWay                `json:"pass"` // null: nothing was computed, or no plan can be made for the device
}

// precomputation makes a cache.
type precomputation struct {
	c      Config
	job    CacheJob
	dev    device.Device
	in     *inputs
	header cache.Header
	keys   []cache.Key
	at     []int // a row of the data of each key
	order  []int // of rows; nil: that of the data
	w      *cache.Writer
	chosen *device.Form // of the teacher that is loaded; nil: by rule
	way    passWay

	verifies bool // what a cache has, instead of making one

	stream  device.Stream
	teacher *teacher.Resident
	batch   *model.Batch

	// Of all passes so far: positions, those that fill a pass too, and the time of the device by phase. PhaseLoss
	// is that of draws.
	positions int
	phases    [device.NumPhases]time.Duration
}

// openForCache opens the teacher and the data, as a run of c does.
func openForCache(ctx context.Context, c Config, obs Observer) (in *inputs, err error) {
	in = &inputs{records: map[string]runlog.Input{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.close())
		}
	}()
	if err := in.openTeacher(c); err != nil {
		return nil, err
	}
	in.doubt(in.teacher, c, obs)
	in.studentConfig = in.teacher.Config // which shares all ids with it
	if c.SeqLen > in.teacher.Config.MaxPositions {
		return nil, fault.New(fault.Usage, "--seq-len %d exceeds the model's %d positions", c.SeqLen, in.teacher.Config.MaxPositions)
	}
	if c.DocumentMask {
		if err := model.Separable(in.teacher.Config, c.SeqLen); err != nil {
			return nil, err
		}
	}
	if c.Dataset != "" && len(c.EvalData) == 0 {
		in.tokenizer, in.vocab, in.unproven, err = teacher.AlignIDs(in.teacher, in.teacher, c.Teacher, in.teacher.Config.Vocab)
	} else {
		in.tokenizer, in.vocab, err = teacher.Align(in.teacher, nil, c.Teacher, in.teacher.Config.Vocab)
	}
	if err != nil {
		return nil, err
	}
	return in, in.loadData(ctx, c, obs)
}

// Precompute runs the teacher over all rows of the data and keeps what it says in a cache, the folder c.Output.
// Shards that are there are skipped, so that a process that was stopped, or others, can go on; the last one to finish
// seals the cache.
func Precompute(ctx context.Context, c Config, job CacheJob, dev device.Device, obs Observer) (_ *Cached, err error) {
	start := time.Now()
	if err := checkCacheJob(c, job); err != nil {
		return nil, err
	}
	if c.Output == "" {
		return nil, fault.New(fault.Usage, "--stage precompute needs --output, the folder of the cache")
	}
	obs = watched{obs, c.Watch}
	obs.Phase("opening the teacher and the data")
	p := &precomputation{c: c, job: job, dev: dev}
	if p.in, err = openForCache(ctx, c, obs); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.in.close()) }()
	if err := p.describe(); err != nil {
		return nil, err
	}
	if p.job.Store == nil {
		p.job.Store = cache.Folder(c.Output)
	}
	if p.w, err = cache.CreateIn(p.job.Store, p.header, p.keys); err != nil {
		return nil, err
	}
	if err := putHead(p.job.Store, p.in.teacher, job.Kind == cache.Hidden, c.Writer); err != nil {
		return nil, err
	}
	out := &Cached{Cache: c.Output, Kind: job.Kind, Rows: len(p.keys), Positions: int64(len(p.keys)) * int64(c.SeqLen), Shards: len(p.w.Shards()), Inputs: p.in.records,
		Teacher: c.Teacher}
	out.Way = p.way.describe(c.SeqLen)
	if err := p.run(ctx, obs, out); err != nil {
		return nil, err
	}
	obs.Phase("sealing the cache")
	missing, err := p.w.Seal(headFile)
	if err != nil {
		return nil, err
	}
	out.Missing = len(missing)
	out.Sealed, out.Seconds = out.Missing == 0, time.Since(start).Seconds()
	return out, out.measure(p.job.Store)
}

// measure completes the figures.
func (o *Cached) measure(store cache.Store) error {
	s, err := cache.LookIn(store)
	if err != nil {
		return err
	}
	o.Bytes = s.Bytes
	if !o.Sealed {
		return nil
	}
	per := float64(o.Bytes) / float64(o.Positions)
	o.PerPosition = &per
	o.ManifestSHA = s.SHA256
	return nil
}

// checkCacheJob refuses what no cache can be made of.
func checkCacheJob(c Config, job CacheJob) error {
	switch {
	case c.Teacher == "":
		return fault.New(fault.Usage, "no teacher given").WithHint("apr distill TEACHER -d DATA --stage precompute -o CACHE")
	case (len(c.Data) == 0) == (c.Dataset == ""):
		return fault.New(fault.Usage, "exactly one of --data and --dataset is needed")
	case len(c.Teachers()) > 1 || c.Ensemble.routed():
		return fault.New(fault.Unavailable, "not built yet: --stage precompute with --strategy ensemble").WithHint("make a cache of each teacher").WithID("E-DISTILL-112")
	case c.TeacherFP8 || c.HostExperts:
		return fault.New(fault.Unavailable, "not built yet: --stage precompute with --teacher-gemm fp8 or --teacher-experts host").WithID("E-DISTILL-112")
	case job.Of < 1 || job.Shard < 0 || job.Shard >= job.Of:
		return fault.New(fault.Usage, "--shard %d/%d: I is from 0 to N-1", job.Shard, job.Of)
	}
	return nil
}

// drawAlgorithm names how ids are drawn, in the header's algorithms. Caches of earlier versions, whose weights were
// rounded sums, have no such name: they serve training, and are not continued.
const drawAlgorithm = "draws by integer weights"

// describe makes the header and the list of rows.
func (p *precomputation) describe() error {
	info := p.dev.Info()
	var err error
	h := cache.Header{Kind: p.job.Kind, Device: info.Kind + " " + info.ISA, Algorithms: "expanded", TeacherConfig: p.in.teacher.Config.Hash(),
		PassRows: teacher.GroupRows(info, p.c.SeqLen), ChunkRows: p.c.ChunkRows}
	if info.Kind == "cpu" {
		h.Algorithms = "as stored, or expanded to float32 where the teacher is small"
		if p.c.TeacherCache == "off" {
			h.Algorithms = "as stored"
		}
	}
	if h.ChunkRows == 0 {
		h.ChunkRows = DefaultChunkRows(info)
	}
	if err := p.in.hashModel(nameOf(0), p.c.Teacher, p.in.teacher); err != nil {
		return err
	}
	if err := p.in.checkExpected(p.c); err != nil {
		return err
	}
	h.Teacher = p.in.records[nameOf(0)].SHA256
	if err := p.in.describeRows(p.c, &h); err != nil {
		return err
	}
	// a GPU's products of another size may be summed otherwise than the live run's
	if p.job.Kind == cache.Hidden && (info.Kind != "cpu" || p.order != nil) {
		h.PassRows = min(h.PassRows, p.c.Rows())
	}
	perRow := int64(drawsBytes)
	if p.job.Kind == cache.Hidden {
		h.Width, h.DType = p.in.teacher.Config.Hidden, info.Activations.String()
		perRow = int64(h.Width) * int64(info.Activations.BlockBytes())
	} else {
		h.Temperature, h.Draws, h.Seed, h.Entropy = p.c.Loss.Temperature, p.job.Draws, p.c.Seed, p.job.Entropy
	}
	limit := p.job.ShardBytes
	if limit == 0 {
		limit = shardBytes
	} else { // smaller shards than a pass: smaller passes
		h.PassRows = int(max(1, min(int64(h.PassRows), limit/(perRow*int64(p.c.SeqLen)))))
	}
	if p.way, err = p.chooseWay(h); err != nil {
		return err
	}
	h.PassRows = p.way.rows
	if p.way.form.Blocks && p.in.teacherQuantised() {
		h.Algorithms = "blocks"
	}
	if p.way.form.FP8 {
		h.Algorithms += ", products in 8-bit floats"
	}
	if d, ok := p.dev.(interface{ Identity() string }); ok {
		h.Algorithms += ", " + d.Identity()
	}
	if p.job.Kind == cache.Draws {
		h.Algorithms += ", " + drawAlgorithm
	}
	passes := max(1, limit/(perRow*int64(p.c.SeqLen)*int64(h.PassRows)))
	if p.job.ShardBytes == 0 { // a shard has at least the rows that go through a layer together
		passes = max(passes, int64(p.way.groups))
	}
	h.ShardRows = int(min(passes*int64(h.PassRows), 1<<20/int64(h.PassRows)*int64(h.PassRows)))
	p.header = h
	p.keys, p.at = cacheKeys(p.in.rows, p.c.DocumentMask, p.order)
	return nil
}

// run makes the missing shards of this process.
func (p *precomputation) run(ctx context.Context, obs Observer, out *Cached) error {
	var todo []cache.Shard
	for i, s := range p.w.Shards() {
		if i%p.job.Of == p.job.Shard {
			todo = append(todo, s)
		}
	}
	todo, err := p.w.Missing(todo)
	if err != nil {
		return err
	}
	rows := 0
	for _, s := range todo {
		rows += s.Hi - s.Lo
	}
	if len(todo) == 0 {
		return nil
	}
	obs.Phase("loading the teacher")
	if err := p.load(); err != nil {
		return err
	}
	defer p.batch.Free(p.dev)
	obs.Phase("running the teacher")
	done, began := 0, time.Now()
	var pending behind
	for _, s := range todo {
		if p.w.Has(s) { // another process was faster: one that makes all that is missing
			done += s.Hi - s.Lo
			continue
		}
		if err := p.shard(ctx, s, func(n int) { obs.Advance(done+n, rows) }, &pending); err != nil {
			return errors.Join(stoppedAfter(err, done, rows), pending.end())
		}
		done += s.Hi - s.Lo
		out.Written++
	}
	if err := pending.end(); err != nil {
		return err
	}
	p.measure(out)
	rate := float64(rows) * float64(p.c.SeqLen) / time.Since(began).Seconds()
	out.TokensPerSec = &rate
	return nil
}

// behind is what the host does with a pass while the next one runs: encoding, and writing a shard that is complete.
type behind struct{ done chan error }

// then runs f when what came before is done, whose error it returns.
func (w *behind) then(f func() error) error {
	if err := w.end(); err != nil {
		return err
	}
	w.done = make(chan error, 1)
	go func(done chan error) { done <- f() }(w.done)
	return nil
}

// end waits for what is under way.
func (w *behind) end() error {
	if w.done == nil {
		return nil
	}
	err := <-w.done
	w.done = nil
	return err
}

// errStopped ends a shard whose context has ended.
var errStopped = errors.New("stopped")

// stoppedAfter says how far a process came that was asked to stop.
func stoppedAfter(err error, done, rows int) error {
	if !errors.Is(err, errStopped) {
		return err
	}
	return fault.New(fault.Stopped, "stopped after %d of %d rows", done, rows).
		WithHint("the same command goes on: shards that are written are skipped, the one in progress is made again")
}

// shard makes a shard, pass by pass. The host is a pass behind.
func (p *precomputation) shard(ctx context.Context, s cache.Shard, advance func(rows int), host *behind) error {
	var all [][]byte
	for lo, step := s.Lo, p.header.PassRows*p.way.groups; lo < s.Hi; lo += step {
		if ctx.Err() != nil {
			return errStopped
		}
		hi := min(lo+step, s.Hi)
		encode, err := p.begin(p.keys[lo:hi], p.at[lo:hi])
		if err != nil {
			return err
		}
		last := hi == s.Hi
		err = host.then(func() error {
			encoded, err := encode()
			if all = append(all, encoded...); err != nil || !last {
				return err
			}
			return p.w.Write(s, all)
		})
		if err != nil {
			return err
		}
		advance(hi - s.Lo)
	}
	return nil
}

// measure says what the device took.
func (p *precomputation) measure(out *Cached) {
	if body := p.phases[device.PhaseTeacher].Seconds(); body > 0 {
		rate := float64(p.positions) / body
		out.Forward = &rate
	}
	if p.header.Kind == cache.Draws && p.positions > 0 && drawsThere(p.dev.Info()) {
		us := 1e6 * p.phases[device.PhaseLoss].Seconds() / float64(p.positions)
		out.DrawsUS = &us
	}
}
