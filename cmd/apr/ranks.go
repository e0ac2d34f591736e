package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"apr/collective"
	"apr/device"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/launcher"
	runlog "apr/run/log"
	"apr/run/watch"
)

// Variables of the environment that ranks are told by.
const (
	startedVariable    = "APR_RANK_STARTED"    // set in ranks that rank 0 has started: they start none
	secretVariable     = "APR_RANK_SECRET"     // what ranks prove to know to each other
	generationVariable = "APR_RANK_GENERATION" // how often the run was started again
	deviceVariable     = "APR_RANK_DEVICE"     // GPU of a rank that rank 0 has started, whatever --device says
)

// party is the group of ranks that this process belongs to.
type party struct {
	rank, world int
	by          string // who says so
	rendezvous  string // HOST:PORT or file://DIR; empty: this process starts the others
	secret      []byte
	generation  int
	least, most int  // of --elastic
	teachers    int  // the last ones only teach
	split       bool // each of these has some of the teacher's layers
	local       int  // ranks of this machine that this process starts, with itself as the first; 0: all there are
	firstDevice int  // GPU of this process, if it starts others: each has the next one
	sameBits    bool
	wait        time.Duration
	silence     time.Duration

	shared   *folder  // of file://DIR
	alone    standing // of a process of its own
	folder   string   // of a rank above 0: its run directory, which goes when it ends
	listener net.Listener
	done     bool // the run has not failed
	children *startedRanks
}

// table is what this call says of ranks.
func (o *distillOptions) saysOfRanks() string {
	var b strings.Builder
	for _, v := range [][2]string{
		{"--rank", strconv.Itoa(o.Rank)}, {"--world-size", strconv.Itoa(o.WorldSize)}, {"--rendezvous", o.Rendezvous},
	} {
		if v[1] != "" && v[1] != "-1" && v[1] != "0" || v[0] == "--rank" && o.Rank == 0 {
			fmt.Fprintf(&b, "\n%-14s %s", v[0], v[1])
		}
	}
	return b.String()
}

// party finds out which of how many ranks this process is: by its flags, else by what a launcher says.
func (o *distillOptions) party(e *cli.Env) (*party, error) {
	p := &party{world: 1, firstDevice: o.Device, wait: o.RendezvousTimeout, sameBits: o.Deterministic == "world",
		silence: silenceLimit}
	if o.StallTimeout > 0 {
		p.silence = min(p.silence, o.StallTimeout)
	}
	var err error
	if p.least, p.most, err = o.elastic(); err != nil {
		return nil, err
	}
	if o.Rank < 0 && o.WorldSize == 0 && o.Rendezvous == "" && o.joins(e) {
		if done, err := p.launched(e, o); done || err != nil {
			return p, err
		}
	}
	if err := errors.Join(o.takeDevice(e), o.takeGPUs(e)); err != nil {
		return nil, err
	}
	if o.Rank < 0 && o.WorldSize == 0 && o.Rendezvous == "" {
		p.alone, err = rank(e)
		return p, err
	}
	complete := o.Rank >= 0 && o.WorldSize > 0 && o.Rendezvous != ""
	local := o.Rank < 0 && o.WorldSize > 0 && o.Rendezvous == ""
	switch {
	case local && e.Getenv(startedVariable) != "":
		return nil, fault.In(fault.Usage, startedVariable, "is set, and nothing says which rank this process is")
	case !complete && !local && !(o.WorldSize == 1 && o.Rank <= 0):
		return nil, fault.New(fault.Usage, "--rank, --world-size and --rendezvous belong together").
			WithHint("give all three on every rank, or --world-size alone to start the ranks of this machine%s",
				o.saysOfRanks()).
			WithID("E-RANKS-030")
	case o.Rank >= o.WorldSize:
		return nil, fault.New(fault.Usage, "--rank %d of --world-size %d: ranks go from 0 to %d", o.Rank, o.WorldSize,
			o.WorldSize-1).
			WithID("E-RANKS-031")
	}
	if !complete || o.WorldSize == 1 { // a launcher's other processes would each train a student
		if p.alone, err = rank(e); err != nil {
			return nil, err
		}
	} else if e.Getenv(startedVariable) == "" {
		p.alone = o.besideLauncher(e)
	}
	p.rank, p.world, p.rendezvous, p.by = max(0, o.Rank), o.WorldSize, o.Rendezvous, "--rank and --world-size"
	if local {
		p.by = "--world-size, which starts the others"
		if o.GPUs != "1" {
			p.by = "--gpus " + o.GPUs + ", which starts the others"
		}
	}
	if p.world == 1 {
		p.rendezvous = ""
		return p, nil
	}
	if local {
		p.local = p.world
	}
	p.secret = []byte(e.Getenv(secretVariable))
	if g := e.Getenv(generationVariable); g != "" {
		n, err := strconv.ParseUint(g, 10, 31)
		if err != nil {
			return nil, fault.In(fault.Usage, generationVariable, "%q is not a whole number from 0 up", g)
		}
		p.generation = int(n)
	}
	if folder, ok := strings.CutPrefix(p.rendezvous, "file:"); ok {
		if p.shared, err = newFolder(folder); err != nil {
			return nil, err
		}
		return p, nil
	}
	if p.rendezvous != "" && len(p.secret) == 0 {
		return nil, fault.In(fault.Usage, secretVariable,
			"is not set: ranks that meet at %s prove to each other that they know it", p.rendezvous).
			WithHint("set it to the same text on every rank").WithID("E-RANKS-032")
	}
	return p, nil
}

// besideLauncher warns where --rank and --world-size do not fit what the launcher says: then processes on another
// machine may be training a second student. A launcher that counts machines fits flags that count the ranks of all
// machines. It does not fit a --rendezvous that only this machine can reach.
func (o *distillOptions) besideLauncher(e *cli.Env) (s standing) {
	place, _ := launcher.Check(e.Getenv) // more ranks than one are refused there, and asked for here
	here := meetsHere(o.Rendezvous)
	odd := func(rank, world int) bool {
		return world > o.WorldSize || world == o.WorldSize && rank != o.Rank || here && 1 < world && world < o.WorldSize
	}
	switch {
	case place.World > 1 && odd(place.Rank, place.World):
		const note = "--rank %d of --world-size %d, and this process is %s: flags count all ranks, not those of a machine"
		s.Notes = []string{fmt.Sprintf(note, o.Rank, o.WorldSize, place)}
	case place.World < 2 && here:
		s.Notes = place.Notes
	}
	for _, a := range launcher.FindAlike(e.Environ()) {
		if a.Of() > o.WorldSize || here && a.Of() != o.WorldSize {
			const note = "--world-size %d beside %s=%s and %s=%s: flags count all ranks, not those of a machine"
			s.Notes = append(s.Notes, fmt.Sprintf(note, o.WorldSize, a.Index.Name, a.Index.Value, a.Count.Name, a.Count.Value))
		}
	}
	for _, note := range s.Notes {
		e.Log.Warn(note)
	}
	return s
}

// meetsHere reports whether only ranks of this machine can meet at an address: a loopback one, or a folder for
// temporary files.
func meetsHere(rendezvous string) bool {
	if folder, ok := strings.CutPrefix(rendezvous, "file:"); ok {
		rel, err := filepath.Rel(os.TempDir(), filepath.Clean(strings.TrimPrefix(folder, "//")))
		return err == nil && filepath.IsLocal(rel)
	}
	host, _, err := net.SplitHostPort(rendezvous)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// launched makes this process a rank of those that a launcher has started, and reports whether one has. Ranks that
// meet by a launcher's variables know no secret but APR_RANK_SECRET: without it the name of the job keeps other jobs
// out, and nobody who knows that name.
func (p *party) launched(e *cli.Env, o *distillOptions) (bool, error) {
	m, err := launcher.Meet(e.Getenv)
	switch {
	case err != nil:
		return false, err
	case m.Nodes > 0:
		return p.onMachine(e, o, m)
	case m.World < 2:
		return false, nil
	}
	if o.GPUs != "1" {
		e.Log.Info("--gpus " + o.GPUs + ": " + m.By + " has started the ranks")
	}
	p.rank, p.world, p.by, p.rendezvous, p.generation = m.Rank, m.World, m.By, m.Addr, m.Generation
	if p.secret = []byte(e.Getenv(secretVariable)); len(p.secret) == 0 {
		p.secret = []byte(m.Job)
	}
	return true, nil
}

// onMachine makes this process the first of a machine's ranks, which it starts: the launcher has started this command
// once on each machine.
//
//	rank = machine · ranks of each, world = machines · ranks of each
func (p *party) onMachine(e *cli.Env, o *distillOptions, m launcher.Meeting) (bool, error) {
	each := m.PerNode
	if each == 0 {
		if o.Backend == "cpu" {
			return false, fault.New(fault.Usage, "%s says one rank for each GPU, beside --backend cpu", m.By).
				WithHint("give a number of ranks").WithID("E-RANKS-043")
		}
		n, err := o.gpusHere()
		if n == 0 {
			return false, fault.New(fault.Unavailable, "%s says one rank for each GPU: this machine has none", m.By).
				Because(err).WithID("E-RANKS-042")
		}
		each = n
	}
	if o.GPUs != "1" {
		e.Log.Info("--gpus " + o.GPUs + ": " + m.By + fmt.Sprintf(" says %d ranks for each machine", each))
	}
	if p.world = m.Nodes * each; p.world == 1 {
		return false, nil
	}
	p.rank, p.local, p.by, p.rendezvous, p.generation = m.Node*each, each, m.By, m.Addr, m.Generation
	if p.secret = []byte(e.Getenv(secretVariable)); len(p.secret) == 0 {
		p.secret = []byte(m.Job)
	}
	return true, nil
}

// joins reports whether a launcher's variables make this process one of several ranks. With --backend auto they do
// where there are GPUs: all ranks then compute on CUDA, and one whose GPU cannot be used ends the run.
func (o *distillOptions) joins(e *cli.Env) bool {
	switch o.Backend {
	case "cpu", "cuda":
		return true
	case "auto":
		m, err := launcher.Meet(e.Getenv)
		if err == nil && m.World < 2 && m.Nodes == 0 {
			return false
		}
		if n, _ := gpuCount(); n > 0 {
			o.Backend = "cuda"
			return true
		}
	}
	return false
}

// silenceLimit is how long a rank may be silent before it counts as lost, unless --stall-timeout is less.
const silenceLimit = 30 * time.Second

// elastic reads MIN:MAX.
func (o *distillOptions) elastic() (least, most int, err error) {
	if o.Elastic == "" {
		return 0, 0, nil
	}
	low, high, ok := strings.Cut(o.Elastic, ":")
	least, err1 := strconv.Atoi(low)
	most, err2 := strconv.Atoi(high)
	if !ok || err1 != nil || err2 != nil || least < 1 || most < least {
		return 0, 0, fault.New(fault.Usage, "--elastic %q is not MIN:MAX, two whole numbers from 1 up", o.Elastic)
	}
	return least, most, nil
}

// learners is how many ranks learn.
func (p *party) learners() int { return p.world - p.teachers }

// share is what this rank has of the training state, and a rank that only teaches plans with: it keeps none, but all
// ranks have to plan the same step.
func (p *party) share() device.Share {
	return device.Share{Rank: p.rank % p.learners(), World: p.learners()}
}

// teach lets the last k ranks only teach.
func (p *party) teach(k int, split bool) error {
	if k >= p.world && k > 0 {
		return fault.New(fault.Usage, "--teacher-ranks %d of %d: at least one rank has to learn", k, p.world).
			WithHint("--world-size or --gpus counts all ranks, those that teach too").WithID("E-RANKS-060")
	}
	p.teachers, p.split = k, split
	return nil
}

// several reports whether there are other ranks.
func (p *party) several() bool { return p.world > 1 }

// leads reports whether this process writes the run.
func (p *party) leads() bool { return p.rank == 0 }

// open takes what this rank needs before it reads anything: rank 0 its address, the others a folder.
func (p *party) open(e *cli.Env) (err error) {
	if p.most > 0 && (p.learners() < p.least || p.learners() > p.most) {
		return fault.New(fault.Usage, "--elastic %d:%d does not hold %d ranks", p.least, p.most, p.learners())
	}
	if !p.several() {
		return nil
	}
	e.Log.Info(fmt.Sprintf("ranks: rank %d of %d by %s", p.rank, p.world, p.by))
	switch {
	case p.rank > 0:
		if p.folder, err = os.MkdirTemp("", "apr-rank-"); err != nil {
			return err
		}
		if p.shared != nil {
			return p.shared.arrive(p.rank)
		}
		return p.startOthers(e)
	case p.shared != nil:
		p.listener, p.secret, err = p.shared.open(p.generation)
		return err
	case p.rendezvous == "":
		return p.fork(e)
	}
	if p.listener, err = net.Listen("tcp", p.rendezvous); err != nil {
		return fault.New(fault.Network, "--rendezvous %s: rank 0 cannot listen there", p.rendezvous).Because(err).
			WithHint("name an address of this machine and a port that is free").WithID("E-RANKS-033")
	}
	return p.startOthers(e)
}

// startOthers starts the other ranks of this machine, which share its processors with this one.
func (p *party) startOthers(e *cli.Env) (err error) {
	if p.local < 2 {
		return nil
	}
	threads := max(1, runtime.GOMAXPROCS(0)/p.local)
	p.children, err = startRanks(e, p, threads)
	runtime.GOMAXPROCS(threads)
	return err
}

// fork begins to listen on a free port of this machine and starts the other ranks.
func (p *party) fork(e *cli.Env) (err error) {
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return fault.New(fault.Network, "no port to meet the other ranks at").Because(err)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	p.secret = []byte(hex.EncodeToString(secret))
	p.rendezvous = p.listener.Addr().String()
	p.local = p.world
	return p.startOthers(e)
}

// config says of a run's configuration what is known before the ranks meet.
func (p *party) config() distill.Group {
	return distill.Group{Rank: p.rank, World: p.learners(), Teachers: p.teachers,
		Split: p.split, SameBits: p.sameBits, Least: p.least, Most: p.most}
}

// check refuses a device on which this rank cannot join the others.
func (p *party) check(dev *opened) error {
	if !p.several() || dev.gpu == nil {
		return nil
	}
	if n, err := dev.gpu.Devices(); err == nil && p.children != nil && p.firstDevice+p.local > n {
		return fault.New(fault.Unavailable, "%d ranks from GPU %d on: this machine has %d", p.local, p.firstDevice, n).
			WithHint("--world-size %d, or ranks on other machines by torchrun or srun", max(1, n-p.firstDevice)).
			WithID("E-RANKS-036")
	}
	if p.learners() > 1 { // else there is no training state to share
		dev.gpu.KeepShare(p.share())
	}
	return dev.gpu.CanJoin()
}

// configure makes the configuration that of this rank.
func (p *party) configure(c *distill.Config, joined func(collective.Comm)) {
	if !p.several() {
		return
	}
	if p.rank > 0 {
		c.Output = filepath.Join(p.folder, "run")
	}
	c.Ranks.Join = func(ctx context.Context, fields []collective.Field) (collective.Comm, error) {
		comm, err := p.meet(ctx, fields)
		if err == nil {
			joined(comm)
		}
		return comm, err
	}
}

// meet joins the other ranks.
func (p *party) meet(ctx context.Context, fields []collective.Field) (collective.Comm, error) {
	h := collective.Hello{Rank: p.rank, World: p.world, Generation: p.generation, Fields: fields,
		Who: who()}
	o := collective.Options{Secret: p.secret, Wait: p.wait, Silence: p.silence}
	if p.shared != nil {
		return p.shared.meet(ctx, p.listener, h, o)
	}
	if p.rank > 0 {
		return collective.Join(ctx, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", p.rendezvous)
		}, h, o)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if p.children != nil {
		p.children.died(cancel)
	}
	comm, err := collective.Serve(ctx, p.listener, h, o)
	if died := context.Cause(ctx); err != nil && died != nil && !errors.Is(died, context.Canceled) {
		return nil, died
	}
	return comm, err
}

// close ends what open began. Other ranks that were started here have some time to end by themselves.
func (p *party) close(dog *watch.Watchdog) {
	if p.listener != nil {
		_ = p.listener.Close() // the group does it, too
	}
	if p.children != nil {
		patience := patienceOnFailure
		if p.done {
			patience = patienceWithRanks
		}
		p.children.end(patience, func() { dog.Doing("waiting for the other ranks to end") })
	}
	if p.shared != nil {
		p.shared.leave(p.rank)
	}
	if p.folder != "" {
		_ = os.RemoveAll(p.folder) // what is left of it is in the folder for temporary files
	}
}

// record writes down who counted.
func (p *party) record(r *distill.Run) error {
	if p.by == "" {
		return recordRank(r, p.alone)
	}
	how := "gradients are added as a binary tree over the ranks, in float32; rank 0 writes the run"
	if p.sameBits {
		how = fmt.Sprintf("a step is %d parts by position, whose gradients are added as one binary tree: the bits do not "+
			"depend on the number of ranks", distill.WorldLeaves)
	}
	if p.teachers > 0 {
		how += fmt.Sprintf("; the last %d only teach, and send hidden states to the others, which hold the teacher's head",
			p.teachers)
	}
	return r.Decision("ranks", map[string]any{
		"teacher_ranks": p.teachers,
		"rank":          p.rank, "world_size": p.world, "by": p.by, "rendezvous": p.rendezvous, "generation": p.generation,
		"deterministic": map[bool]string{false: "run", true: "world"}[p.sameBits],
	}, how)
}

// follower is the display of a rank above 0: rank 0 shows the run.
type follower struct{ e *cli.Env }

func (f follower) Phase(name string)                  { f.e.Log.Debug(name) }
func (f follower) Advance(int, int)                   {}
func (f follower) Leg(string, int, int)               {}
func (f follower) Step(string, runlog.Step)           {}
func (f follower) Evaluated(string, int, float64)     {}
func (f follower) Message(format string, args ...any) { f.e.Log.Debug(fmt.Sprintf(format, args...)) }
func (f follower) Detail(format string, args ...any)  { f.e.Log.Debug(fmt.Sprintf(format, args...)) }

var _ distill.Observer = follower{}
