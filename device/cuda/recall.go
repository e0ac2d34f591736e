package cuda

import (
	"slices"
	"sync/atomic"
	"time"

	"apr/device"
	"apr/device/cuda/driver"
)

// A pass over many sequences has hundreds of operations, which follow from a few numbers and from where tensors
// are. To make them takes the host longer than to launch them as a graph, and the device waits meanwhile. So
// operations that were collected under a key are kept, and queued again without the call that made them, as long
// as nothing that they rely on has changed: no memory but temps was given back, no matrix was put into tiles, no
// bias needs another copy. Temps that a call takes itself are not part of a key, so a call that takes some is
// never kept.

// mostRecipes are kept: a pass that draws and one that does not, in a few buckets of keys.
const mostRecipes = 8

// recipe is what a recording needs to be kept.
type recipe struct {
	key   device.ReplayKey // of nothing: it has none
	epoch int64
	temps atomic.Bool // some were taken while it was collected
}

// ReplayAs runs f, or what is known of it: see device.Replayer.
func (s *Stream) ReplayAs(key device.ReplayKey, f func()) {
	if s.recall(key) {
		return
	}
	rec := &recording{stream: s}
	rec.key = device.ReplayKey{Of: key.Of, Numbers: slices.Clone(key.Numbers), Tensors: slices.Clone(key.Tensors)}
	rec.epoch = s.dev.replays.epoch.Load()
	s.collectFor(rec, f)
}

// recall queues the operations that are known by a key, and reports whether there are some.
func (s *Stream) recall(key device.ReplayKey) bool {
	d, r := s.dev, &s.dev.replays
	if s.failed() || d.prof.Load() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.recipes, func(rec *recording) bool { return rec.stream == s && rec.key.Equal(key) })
	if i < 0 || r.open != nil {
		return false
	}
	rec := r.recipes[i]
	r.recipes = slices.Delete(r.recipes, i, i+1)
	if rec.epoch != r.epoch.Load() {
		return false
	}
	r.recipes = append(r.recipes, rec)
	r.counts.recalled.Add(1)
	d.issued.Add(1)
	d.ctx.Go(func(t *driver.Thread) { d.again(t, rec) })
	return true
}

// keep keeps a recording that has a key, if its operations follow from that. The lock is held.
func (r *replays) keep(rec *recording) {
	epoch := r.epoch.Load()
	failed := rec.stream.failed() // then operations were left out
	if rec.key.Of == nil || rec.epoch != epoch || rec.temps.Load() || failed {
		return
	}
	r.recipes = slices.DeleteFunc(r.recipes, func(old *recording) bool { return old.epoch != epoch })
	if len(r.recipes) == mostRecipes {
		r.recipes = slices.Delete(r.recipes, 0, 1)
	}
	r.recipes = append(r.recipes, rec)
}

// changed says that what recipes rely on is no longer as it was.
func (r *replays) changed() { r.epoch.Add(1) }

// taken says that a temp was taken.
func (r *replays) taken() {
	if rec := r.collecting.Load(); rec != nil {
		rec.temps.Store(true)
	}
}

// again runs a recording on the device's thread: if a graph has its arguments, without a look at them.
func (d *Device) again(t *driver.Thread, rec *recording) {
	r := &d.replays
	i := slices.Index(r.graphs, rec.graph)
	if i < 0 || rec.graph.latest != rec || r.off != "" || d.prof.Load() != nil || rec.stream.failed() {
		d.replay(t, rec)
		return
	}
	r.graphs = append(slices.Delete(r.graphs, i, i+1), rec.graph)
	name, start := rec.name(), time.Now()
	d.doing.Store(&name)
	d.launch(t, rec.graph, rec, name, start)
}
