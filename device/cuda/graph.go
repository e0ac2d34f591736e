package cuda

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
)

var _ device.Replayer = (*Stream)(nil)

// A position of a generation is hundreds of small launches, which differ from the position before in a few arguments: where
// its keys go, how many there are, by which row of a table heads turn. Replay collects them. The first time they are
// launched one by one, the second time captured as a CUDA graph; from then on each is compared with what the graph has,
// the few that differ are set, and the graph is launched. So kernels, their arguments and their order are those of
// single launches, and bits are the same.

// replays are the graphs of a device.
type replays struct {
	mu   sync.Mutex
	open *recording // whose operations are collected; nil: none

	state  atomic.Pointer[string] // see Replaying
	counts struct{ launched, updated, nanos, recalled atomic.Int64 }

	recipes    []*recording              // with a key, the latest last: see recall.go
	epoch      atomic.Int64              // of what recipes rely on
	collecting atomic.Pointer[recording] // open, for those who do not hold the lock

	// Of the device's thread alone.
	graphs []*graph // the latest launched last
	before [][]node // of the two latest collections launched one by one: products may alternate between two places
	off    string   // why graphs are not used any more; empty: they are
}

// mostGraphs are kept: layers with and without shared-out keys, of a model and of its draft.
const mostGraphs = 4

// recording are the operations of a Replay.
type recording struct {
	stream *Stream
	ops    []*operation
	recipe // if it has a key

	graph *graph // that had its arguments last; of the device's thread alone
}

// node is a step as a graph has it.
type node struct {
	key    any // of a call; nil: a launch
	launch kernel.Launch
	f      driver.Function
	args   []byte // what launch.Args pointed to
	handle driver.Node
}

// graph is an instantiated graph.
type graph struct {
	nodes    []node
	captured driver.Graph
	exec     driver.Exec
	latest   *recording // whose arguments it has
}

// Replay runs f: see device.Replayer.
func (s *Stream) Replay(f func()) { s.collectFor(&recording{stream: s}, f) }

// collectFor runs f and queues its operations, which rec collects.
func (s *Stream) collectFor(rec *recording, f func()) {
	r := &s.dev.replays
	r.mu.Lock()
	if r.open != nil || s.dev.opts.NoGraphs {
		rec = nil
	} else {
		r.open = rec
		r.collecting.Store(rec)
	}
	r.mu.Unlock()
	f()
	if rec == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open != rec { // something came between
		return
	}
	r.closes()
	if len(rec.ops) > 0 {
		r.keep(rec)
		s.dev.issued.Add(1)
		s.dev.ctx.Go(func(t *driver.Thread) { s.dev.replay(t, rec) })
	}
}

// Replaying says how operations of Replay ran last.
func (s *Stream) Replaying() string {
	switch p := s.dev.replays.state.Load(); {
	case s.dev.opts.NoGraphs:
		return "launch by launch, as asked"
	case p != nil:
		return *p
	}
	return ""
}

// take queues an operation, or collects it. Anything that cannot be part of a graph ends the collection, as does an
// operation of another stream: the order stays that of calls.
func (r *replays) take(o *operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open != nil {
		if o.stream == r.open.stream && o.repeats() {
			r.open.ops = append(r.open.ops, o)
			return
		}
		for _, c := range r.open.ops {
			c.queue()
		}
		r.closes()
	}
	o.queue()
}

// closes ends a collection. The lock is held.
func (r *replays) closes() {
	r.open = nil
	r.collecting.Store(nil)
}

// repeats reports whether all steps can be nodes of a graph.
func (o *operation) repeats() bool {
	return !slices.ContainsFunc(o.steps, func(s step) bool { return s.call != nil && s.key == nil })
}

// replay runs collected operations on the device's thread.
func (d *Device) replay(t *driver.Thread, rec *recording) {
	r := &d.replays
	if r.off == "" {
		if name := d.driver.LacksGraphs(); name != "" {
			r.off = "the driver lacks " + name
		}
	}
	if r.off != "" || d.prof.Load() != nil {
		d.oneByOne(t, rec, r.off)
		return
	}
	if rec.stream.failed() {
		return
	}
	name := rec.name()
	d.doing.Store(&name)
	start := time.Now()
	nodes, err := d.nodes(t, rec)
	if err != nil {
		rec.stream.fail(d.explain(name, err))
		return
	}
	i := slices.IndexFunc(r.graphs, func(g *graph) bool { return alike(g.nodes, nodes) })
	switch {
	case i >= 0:
		g := r.graphs[i]
		r.graphs = append(slices.Delete(r.graphs, i, i+1), g)
		err = d.update(t, g, nodes)
	case slices.ContainsFunc(r.before, func(b []node) bool { return alike(b, nodes) }):
		err = d.capture(t, rec, nodes)
	default:
		r.before = append(r.before[max(0, len(r.before)-1):], nodes)
		d.oneByOne(t, rec, "")
		return
	}
	if err != nil { // nothing was launched yet
		r.off = "graphs failed: " + err.Error()
		d.oneByOne(t, rec, r.off)
		return
	}
	g := r.graphs[len(r.graphs)-1]
	g.latest, rec.graph = rec, g
	state := fmt.Sprintf("as a CUDA graph of %d kernels and products", len(g.nodes))
	r.state.Store(&state)
	d.launch(t, g, rec, name, start)
}

// launch launches a graph.
func (d *Device) launch(t *driver.Thread, g *graph, rec *recording, name string, start time.Time) {
	d.replays.counts.launched.Add(1)
	rec.stream.fail(d.explain(name, t.LaunchGraph(g.exec, d.stream)))
	d.replays.counts.nanos.Add(time.Since(start).Nanoseconds())
}

// name says what is replayed.
func (r *recording) name() string {
	return fmt.Sprintf("a graph from %s to %s", r.ops[0].name, r.ops[len(r.ops)-1].name)
}

// oneByOne runs operations as if they had not been collected.
func (d *Device) oneByOne(t *driver.Thread, rec *recording, why string) {
	if why != "" {
		state := "launch by launch: " + why
		d.replays.state.Store(&state)
	}
	for _, o := range rec.ops {
		o.run(t)
	}
}

// nodes returns the steps of operations with their kernels, which are loaded if they were not, and their arguments as
// they will be.
func (d *Device) nodes(t *driver.Thread, rec *recording) (nodes []node, err error) {
	for _, o := range rec.ops {
		for i := range o.steps {
			s := &o.steps[i]
			if s.call != nil {
				nodes = append(nodes, node{key: s.key})
				continue
			}
			n := node{}
			if n.f, err = d.resolve(t, s); err != nil {
				return nil, err
			}
			if err := encodeMaps(t, &s.launch); err != nil {
				return nil, err
			}
			n.launch = s.launch
			n.args = unsafe.Slice((*byte)(s.launch.Args), d.kernels.entries[kernelKey{s.launch.Module, s.launch.Kernel}].args)
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// alike reports whether two sequences differ at most in what can be set in a graph.
func alike(a, b []node) bool {
	return slices.EqualFunc(a, b, func(a, b node) bool {
		x, y := &a.launch, &b.launch
		return a.key == b.key && a.f == b.f && len(a.args) == len(b.args) && x.Together == y.Together && x.Early == y.Early && x.Cluster == y.Cluster
	})
}

// update sets what of a graph differs.
func (d *Device) update(t *driver.Thread, g *graph, now []node) error {
	for i := range now {
		n, old := &now[i], &g.nodes[i]
		a, b := &n.launch, &old.launch
		if n.key != nil || a.Grid == b.Grid && a.Block == b.Block && a.Shared == b.Shared && bytes.Equal(n.args, old.args) {
			continue
		}
		if err := t.SetNode(g.exec, old.handle, n.f, a.Grid, a.Block, a.Shared, a.Args); err != nil {
			return err
		}
		d.replays.counts.updated.Add(1)
		n.handle = old.handle
		*old = *n
	}
	return nil
}

// capture makes the graph of operations the latest one.
func (d *Device) capture(t *driver.Thread, rec *recording, nodes []node) error {
	if err := t.BeginCapture(d.stream); err != nil {
		return err
	}
	err := d.collect(t, rec, nodes)
	captured, e := t.EndCapture(d.stream)
	if err == nil {
		err = e
	}
	if err != nil {
		if captured != 0 {
			_ = t.DestroyGraph(captured) // the first error is told
		}
		return err
	}
	g := &graph{nodes: nodes, captured: captured}
	if g.exec, err = t.Instantiate(captured); err != nil {
		_ = t.DestroyGraph(captured)
		return err
	}
	r := &d.replays
	if len(r.graphs) == mostGraphs {
		if err := r.graphs[0].destroy(t); err != nil {
			return err
		}
		r.graphs = slices.Delete(r.graphs, 0, 1) // so that nothing holds it
	}
	r.graphs = append(r.graphs, g)
	return nil
}

// collect gives the capturing stream every step, and finds the nodes of launches.
func (d *Device) collect(t *driver.Thread, rec *recording, nodes []node) error {
	i := 0
	for _, o := range rec.ops {
		for j := range o.steps {
			if err := o.step(t, &o.steps[j]); err != nil {
				return err
			}
			if nodes[i].key == nil {
				var err error
				if nodes[i].handle, err = t.LastCaptured(d.stream); err != nil {
					return err
				}
				if nodes[i].handle == 0 {
					return fmt.Errorf("the driver names no node of kernel %s", nodes[i].launch.Kernel)
				}
			}
			i++
		}
	}
	return nil
}

func (g *graph) destroy(t *driver.Thread) error {
	if err := t.DestroyExec(g.exec); err != nil {
		return err
	}
	return t.DestroyGraph(g.captured)
}

// release gives all graphs back.
func (r *replays) release(t *driver.Thread) error {
	for _, g := range r.graphs {
		if err := g.destroy(t); err != nil {
			return err
		}
	}
	r.graphs = nil
	return nil
}
