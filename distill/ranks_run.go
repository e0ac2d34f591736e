package distill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	runlog "apr/run/log"
	"apr/run/watch"
)

// Group says that a run has several ranks, and how they find each other. The zero Group is a run of one process.
type Group struct {
	Rank, World int  // of the ranks that learn; ranks World to World+Teachers−1 only teach
	Teachers    int  // 0: every rank has the whole teacher
	Split       bool // each of Teachers has some of the teacher's layers; else each has all
	SameBits    bool // --deterministic=world: the bits do not depend on World, which then may also be 1
	// Least and Most are the numbers of ranks with which a run goes on that had another number; 0: it does not, but for
	// SameBits.
	Least, Most int
	// Join meets the other ranks; fields have to be the same on all of them.
	Join func(ctx context.Context, fields []collective.Field) (collective.Comm, error)
}

// teaches reports whether this rank only teaches.
func (g Group) teaches() bool { return g.Teachers > 0 && g.Rank >= g.World }

// All returns the number of ranks.
func (g Group) All() int { return max(1, g.World) + g.Teachers }

// leads reports whether this process writes the run: rank 0 does.
func (g Group) leads() bool { return g.Rank == 0 }

// ranks are those of the trainer, without a Comm.
func (g Group) ranks() (r Ranks) {
	if g.SameBits {
		r.Leaves = WorldLeaves
	}
	return r
}

// shareOf returns how many of a step's rows a rank has at most.
func (g Group) shareOf(rows int) int {
	world := max(1, g.World)
	return (rows + world - 1) / world
}

// Check refuses steps of `rows` rows that the ranks cannot share, before they meet.
func (g Group) Check(rows int) error {
	world := max(1, g.World)
	switch {
	case world > 1 && rows < world: // alone, the plan judges sizes
		return fault.New(fault.Usage, "a step of %d rows is fewer than %d ranks", rows, world).
			WithHint("raise --batch-size or --grad-accum, which count the rows of all ranks, or use fewer ranks").
			WithID("E-RANKS-001")
	case g.SameBits && WorldLeaves%world != 0:
		return fault.New(fault.Usage, "--deterministic=world with %d ranks: it is for 1, 2, 4 or 8",
			world).WithID("E-RANKS-002")
	}
	return nil
}

// follow is the configuration of a rank above 0, which writes nothing that stays: its Output is a folder of its own.
func (c Config) follow() Config {
	if !c.Ranks.leads() {
		c.Export, c.Resume, c.Force, c.Samples, c.EvalEvery = "", "", false, 0, 0
	}
	return c
}

// meet joins the other ranks, if there are any.
func (r *Run) meet(ctx context.Context) (err error) {
	r.ranks = r.Config.Ranks.ranks()
	g := r.Config.Ranks
	if g.All() < 2 {
		return nil
	}
	r.obs.Phase("waiting for the other ranks")
	met := keepAlive(r.Watch, "waiting for the other ranks")
	comm, err := r.Config.Ranks.Join(ctx, r.fields())
	met() // devices that wait for one another without end are the watchdog's
	if err != nil {
		return err
	}
	r.comm = patient{comm, r.Watch}
	switch {
	case g.teaches():
	case g.Teachers == 0:
		r.ranks.Comm = r.comm
	case g.World > 1:
		r.ranks.Comm = patient{comm.First(g.World), r.Watch}
	}
	if g.Teachers > 0 && !g.teaches() {
		r.pupil = &pupil{comm: r.comm, group: g}
		r.Ensemble.bring = r.pupil.bring
	}
	if r.ranks.Comm != nil {
		err = r.joinDevices()
	}
	if err == nil {
		err = r.pairDevices()
	}
	if err != nil {
		comm.Abort(err)
		_ = comm.Close() // nobody waits for it
	}
	return r.lost(err)
}

// joinDevices joins the devices of all ranks, where they can be.
func (r *Run) joinDevices() error {
	dev, ok := r.dev.(device.Joiner)
	if !ok {
		return nil
	}
	r.ranks.Joined = true
	return JoinDevices(r.ranks.Comm, dev)
}

// JoinDevices joins the devices of all ranks of comm: rank 0 makes the group's id, and the others learn it from those
// that proved to be of this run. When a rank is lost, what waits for its device ends.
func JoinDevices(comm collective.Comm, dev device.Joiner) error {
	id := make([]byte, device.GroupIDBytes)
	if comm.Rank() == 0 {
		made, err := dev.GroupID()
		if err != nil {
			return err
		}
		copy(id, made)
	}
	if err := comm.Broadcast(id); err != nil {
		return err
	}
	comm.OnLost(func(l *collective.Lost) { dev.Part(l) })
	return dev.Join(comm.Rank(), comm.World(), id)
}

// prepare takes memory and loads code for the steps. Rank 0 does it first: what it measures to choose algorithms, the
// other ranks of its machine read, so that equal products have equal bits on all of them, and in the next run.
func (r *Run) prepare() error {
	g, planned := r.Config.Ranks, r.in.planned
	if g.teaches() {
		planned = plan.Plan{Record: r.in.choice.Chosen.lessonsOf(g)}
	}
	if r.comm == nil {
		return prepare(r.dev, planned)
	}
	turns := 1 // ranks that wait: the first learning one goes ahead of all, the first teaching one of those that teach
	if g.Teachers > 0 {
		turns = 2
	}
	mine := 1
	switch {
	case g.leads():
		mine = 0
	case g.teaches() && g.Rank > g.World:
		mine = 2
	}
	for turn := 0; turn <= turns; turn++ {
		if turn == mine {
			if err := prepare(r.dev, planned); err != nil {
				return err
			}
		}
		if turn < turns {
			if err := r.comm.Barrier(); err != nil {
				return err
			}
		}
	}
	return nil
}

// fields are what has to be the same on every rank: all that the bits of a run depend on, and whether a control
// follows.
func (r *Run) fields() (all []collective.Field) {
	must := r.mustAgree()
	must["control"] = r.in.control.On
	must["teacher_ranks"], must["teacher_split"] = r.Config.Ranks.Teachers, r.Config.Ranks.Split
	for _, key := range slices.Sorted(maps.Keys(must)) {
		text, err := json.Marshal(must[key])
		if err != nil {
			panic(err) // of what checkpoints hold
		}
		all = append(all, collective.Field{Name: key, Value: string(text)})
	}
	return all
}

// lossIn returns the loss of a rank that err is; nil: it is none, or an error of this rank's own.
func (r *Run) lossIn(err error) (l *collective.Lost) {
	if errors.As(err, &l) && l.Rank == r.Config.Ranks.Rank && l.How == collective.Failed {
		return nil
	}
	return l
}

// recordLoss writes down which rank the run cannot go on without.
func (r *Run) recordLoss(err error) error {
	l := r.lossIn(err)
	if l == nil {
		return nil
	}
	return r.dir.Event(runlog.LostRank, string(l.How), map[string]any{"rank": l.Rank, "ranks": l.World}, l.Error())
}

// lost turns the loss of a rank into the run's end: resumable, and hung if the rank was.
func (r *Run) lost(err error) error {
	l := r.lossIn(err)
	if l == nil {
		return err
	}
	kind := fault.Stopped
	if l.How == collective.Silent || l.How == collective.Hung {
		kind = fault.Hung
	}
	f := fault.New(kind, "%w", l).WithID("E-RANKS-020")
	if r.Config.Ranks.leads() {
		return f.WithHint("the last checkpoint is kept: --resume=%s goes on", r.Output)
	}
	return f
}

// leave ends this rank's part: others that still wait are told of err.
func (r *Run) leave(err error) {
	if r.comm == nil {
		return
	}
	if err != nil {
		r.comm.Abort(err)
	}
	_ = r.comm.Close() // nobody waits for it
}

// patient is a Comm in whose calls the watchdog waits: a rank that hangs is found by its own watchdog, and one that
// is stopped by its silence.
type patient struct {
	collective.Comm
	dog *watch.Watchdog
}

// keepAlive tells the watchdog again and again that something goes on, until what it returns is called.
func keepAlive(dog *watch.Watchdog, doing string) func() {
	dog.Doing(doing)
	stop := make(chan struct{})
	go func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				dog.Doing(doing)
			}
		}
	}()
	return func() { close(stop) }
}

func (p patient) Sum32(x []float32) error {
	defer keepAlive(p.dog, "sum of gradients over the ranks")()
	return p.Comm.Sum32(x)
}

func (p patient) Sum64(x []float64) error {
	defer keepAlive(p.dog, "sums of the step over the ranks")()
	return p.Comm.Sum64(x)
}

func (p patient) Broadcast(x []byte) error {
	defer keepAlive(p.dog, "what rank 0 tells the others")()
	return p.Comm.Broadcast(x)
}

func (p patient) Post(to int, x []byte) error {
	defer keepAlive(p.dog, "a message to another rank")()
	return p.Comm.Post(to, x)
}

func (p patient) Take(from int) (int, []byte, error) {
	defer keepAlive(p.dog, "waiting for a message of another rank")()
	return p.Comm.Take(from)
}

func (p patient) Barrier() error {
	defer keepAlive(p.dog, "waiting for the other ranks")()
	return p.Comm.Barrier()
}

// decide gives every rank what rank 0 wants.
func (r *Run) decide(want bool) (bool, error) {
	if r.ranks.Comm == nil {
		return want, nil
	}
	x := []byte{0}
	if want {
		x[0] = 1
	}
	err := r.ranks.Comm.Broadcast(x)
	return x[0] == 1, err
}

// stopping reports whether the leg is to end after the step that was done: at once for a process of its own; ranks
// agree on it in each step.
func (l *leg) stopping(ctx context.Context) bool {
	if l.run.ranks.World() > 1 {
		return l.trainer.stop
	}
	return l.wantsStop(ctx)
}

// wantsStop reports whether this rank, or one that teaches it, was asked to end.
func (l *leg) wantsStop(ctx context.Context) bool {
	return ctx.Err() != nil || l.run.pupil != nil && l.run.pupil.stop
}

// endShares ends a time in which rank 0 may want what the ranks share; the others serve it until then.
func (r *Run) endShares() error {
	if r.Config.Ranks.leads() {
		return r.shares.done()
	}
	return r.shares.serve()
}

// resumption is where rank 0 goes on, for the others.
type resumption struct {
	From     bool            `json:"from"` // a checkpoint, else from the beginning
	Step     int             `json:"step"`
	Applied  int             `json:"applied"`
	Met      int             `json:"met"`
	Refused  int             `json:"refused"`
	Losses   trend           `json:"losses"`
	Position corpus.Position `json:"position"`
}

// share gives every rank the state of rank 0, which alone has read a checkpoint: others need no folder in common with
// it.
func (l *leg) share() error {
	r := l.run
	if r.ranks.Comm == nil {
		return nil
	}
	if err := r.endShares(); err != nil {
		return err
	}
	var st resumption
	if r.Config.Ranks.leads() {
		st = resumption{From: l.saved.step >= 0, Step: l.trainer.Steps, Applied: l.trainer.Optimizer.Applied, Met: l.met,
			Refused: l.refused, Losses: l.trainer.losses, Position: l.loader.Position()}
	}
	if err := r.tell(&st); err != nil || !st.From {
		return err
	}
	if !r.Config.Ranks.leads() {
		l.trainer.Steps, l.trainer.Optimizer.Applied, l.refused, l.trainer.losses = st.Step, st.Applied, st.Refused, st.Losses
		l.saved.step, l.met = st.Step, st.Met
		if err := l.loader.Seek(st.Position); err != nil {
			return err
		}
	}
	return l.shareTensors()
}

// tell gives every rank the value of rank 0, as JSON.
func (r *Run) tell(v any) error {
	comm := r.ranks.Comm
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	size := fmt.Appendf(nil, "%20d", len(text))
	if err := comm.Broadcast(size); err != nil {
		return err
	}
	var n int
	if _, err := fmt.Sscan(string(size), &n); err != nil {
		return err
	}
	text = slices.Grow(text, max(0, n-len(text)))[:n]
	if err := comm.Broadcast(text); err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// shareTensors gives every rank what a checkpoint of rank 0 held.
func (l *leg) shareTensors() error {
	r, s, m := l.run, l.run.stream, l.student
	host := []float32(nil)
	for _, p := range l.trainer.trained() {
		for _, k := range companions {
			if p.Shared(k.of) {
				continue // spread while rank 0 read it
			}
			t := p.Companion(k.of)
			n := p.Rows * p.Cols
			host = slices.Grow(host[:0], n)[:n]
			if err := s.Download(host, t); err != nil {
				return err
			}
			if err := r.ranks.Comm.Broadcast(bytesOf(host)); err != nil {
				return err
			}
			s.Upload(t, host)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Fixed())) {
		if err := r.ranks.Comm.Broadcast(bytesOf(m.Fixed()[name])); err != nil {
			return err
		}
	}
	for _, p := range l.trainer.trained() {
		if p.Shared(device.OfValue) {
			continue
		}
		if len(p.Blocks) == 0 {
			s.RefreshWeight(p)
			continue
		}
		raw, err := model.StoredBytes(s, p)
		if err != nil {
			return err
		}
		if err := r.ranks.Comm.Broadcast(raw); err != nil {
			return err
		}
		s.(device.Quantizer).SetStored(p, raw)
	}
	return nil
}

// onlyRanks reports whether what a checkpoint differs in is the number of ranks alone, and the run may go on with
// another one.
func (g Group) onlyRanks(diff []string) bool {
	world := max(1, g.World)
	return len(diff) == 1 && strings.HasPrefix(diff[0], ranksKey+" ") && g.Least > 0 && g.Least <= world && world <= g.Most
}

// ranksKey is the name under which checkpoints hold how the rows of a step are added.
const ranksKey = "ranks"

// arithmetic is how the rows of a step are added, of which its bits depend: by so many ranks, or by parts whatever
// the ranks.
func (g Group) arithmetic() (text string, recorded bool) {
	switch {
	case g.SameBits:
		return fmt.Sprintf("%d parts by position", WorldLeaves), true
	case g.World > 1:
		return fmt.Sprint(g.World), true
	}
	return "1", false
}
