package cluster

import "math"

// Times are where the time of a run went. Useful, Lost, Paused and Down are the ranks'; together they are Elapsed.
type Times struct {
	Elapsed       float64
	Useful        float64 // steps that stay
	Lost          float64 // steps that an interruption undid
	Paused        float64 // checkpoints for which training waited
	Down          float64 // from an interruption until the ranks were at work again
	Interruptions float64
}

func (t *Times) add(o Times) {
	t.Elapsed, t.Useful, t.Lost, t.Paused = t.Elapsed+o.Elapsed, t.Useful+o.Useful, t.Lost+o.Lost, t.Paused+o.Paused
	t.Down, t.Interruptions = t.Down+o.Down, t.Interruptions+o.Interruptions
}

func (t *Times) scale(by float64) {
	t.Elapsed, t.Useful, t.Lost, t.Paused = t.Elapsed*by, t.Useful*by, t.Lost*by, t.Paused*by
	t.Down, t.Interruptions = t.Down*by, t.Interruptions*by
}

// States of the ranks that train.
const (
	working = iota
	pausing
	down
	over
)

// training is a group of ranks that train in lock-step. Progress is counted in steps, with fractions; between events it
// grows evenly.
type training struct {
	*clock
	file     *File
	ranks    int
	step     float64 // seconds
	steps    float64 // to do
	interval float64 // steps between checkpoints

	state      int
	since      float64 // when Times were last accounted
	done, safe float64 // steps; those of the newest checkpoint that can be resumed from
	target     float64 // at which the stretch ends
	saved      float64 // of the newest checkpoint, durable or not
	next       *event  // end of the stretch, of the pause or of the restart
	writing    *event  // a checkpoint becomes durable
	feed       *feed   // nil: rows never lack
	spent      float64 // time in which the steps done since safe were computed
	times      Times
}

// feed is a pool of teachers before a buffer. Its unit is what a step of the students takes.
type feed struct {
	teachers     int
	hosts, alive int
	rate         float64 // steps' worth a second of a host
	room, level  float64
}

// patience bounds the time of a run in multiples of the time without interruptions: beyond it, a run makes no progress.
const patience = 100

// train simulates the run until all steps are done, and reports whether they are: not if interruptions leave no
// progress.
func (f *File) train(c *clock, ranks int, step, steps float64, pool *feed) (Times, bool) {
	t := &training{clock: c, file: f, ranks: ranks, step: step, steps: steps, since: c.now, feed: pool}
	began := c.now
	t.interval = math.Inf(1)
	if every := f.interval(ranks); !math.IsInf(every, 1) {
		t.interval = max(1, math.Round(every/step))
	}
	var fail, teacherFails func()
	fail = func() {
		t.interrupt()
		t.after(t.exponential(f.between(ranks)), fail)
	}
	t.after(t.exponential(f.between(ranks)), fail)
	if pool != nil {
		mean := f.between(pool.teachers)
		teacherFails = func() {
			t.loseTeacher()
			t.after(t.exponential(mean), teacherFails)
		}
		t.after(t.exponential(mean), teacherFails)
	}
	t.begin()
	limit := began + patience*steps*step
	c.run(func() bool { return t.state == over || c.now > limit })
	t.times.Elapsed = c.now - began
	return t.times, t.state == over
}

// speed is steps a second at this moment, and when it changes because the buffer runs empty.
func (t *training) speed() (speed, until float64) {
	own := 1 / t.step
	if t.feed == nil {
		return own, math.Inf(1)
	}
	supply := float64(t.feed.alive) * t.feed.rate
	switch {
	case supply >= own:
		return own, math.Inf(1)
	case t.feed.level > 1e-9:
		return own, t.feed.level / (own - supply)
	}
	return supply, math.Inf(1)
}

// account brings progress, buffer and times up to now.
func (t *training) account() {
	span := t.now - t.since
	t.since = t.now
	var took float64
	switch t.state {
	case working:
		speed, _ := t.speed()
		took = span * speed
		t.done += took
		t.spent += span
	case pausing:
		t.times.Paused += span
	case down:
		t.times.Down += span
	}
	if t.feed != nil {
		made := span * float64(t.feed.alive) * t.feed.rate
		t.feed.level = min(t.feed.room, max(0, t.feed.level+made-took))
	}
}

// begin starts or continues a stretch of steps, up to the next checkpoint.
func (t *training) begin() {
	t.state = working
	t.target = min(t.steps, t.saved+t.interval)
	t.plan()
}

// plan plans the end of the stretch at the present speed.
func (t *training) plan() {
	if t.next != nil {
		t.next.off = true
	}
	speed, until := t.speed()
	left := math.Inf(1)
	if speed > 0 {
		left = max(0, t.target-t.done) / speed
	}
	if until < left {
		t.next = t.after(until, func() {
			t.account()
			t.feed.level = 0
			t.plan()
		})
		return
	}
	t.next = t.after(left, t.reach)
}

// reach ends a stretch: the run is over, or a checkpoint is written.
func (t *training) reach() {
	t.account()
	t.done = t.target
	if t.done >= t.steps {
		t.state = over
		t.times.Useful += t.spent
		return
	}
	t.state, t.saved = pausing, t.done
	spent, at := t.spent, t.done
	t.next = t.after(t.file.Checkpoints.Pause, func() {
		t.account()
		t.writing = t.after(t.file.Checkpoints.Durable, func() {
			t.account()
			t.safe = at
			t.times.Useful += spent
			t.spent -= spent
			t.writing = nil
		})
		t.begin()
	})
}

// interrupt undoes what no checkpoint holds and starts the ranks again.
func (t *training) interrupt() {
	t.account()
	t.times.Interruptions++
	for _, e := range []*event{t.next, t.writing} {
		if e != nil {
			e.off = true
		}
	}
	t.times.Lost += t.spent
	t.spent, t.done, t.saved = 0, t.safe, t.safe
	t.state, t.writing = down, nil
	t.next = t.after(t.file.Failures.Detect+t.file.Failures.Restart, func() {
		t.account()
		t.begin()
	})
}

// loseTeacher takes a host of the pool away until it is replaced.
func (t *training) loseTeacher() {
	t.account()
	t.times.Interruptions++
	if t.feed.alive == 0 {
		return
	}
	t.feed.alive--
	t.after(t.file.Failures.Detect+t.file.Failures.Restart, func() {
		t.account()
		t.feed.alive++
		if t.state == working {
			t.plan()
		}
	})
	if t.state == working {
		t.plan()
	}
}

// precompute simulates n GPUs that write a teacher's cache of so many tokens, shard by shard and without waiting for
// each other: an interruption takes a host away, with half a shard of each of its GPUs on average.
func (f *File) precompute(c *clock, n int, tokens float64) (Times, bool) {
	p := f.phases(f.Steps[0].Tokens)
	each := p.Tokens / p.Teacher // tokens a second of a GPU
	if f.Cache.Store > 0 {
		each = min(each, f.Cache.Store/f.Cache.PerToken/float64(n))
	}
	host := min(n, f.Links.PerHost)
	var t Times
	alive, done, since, began := n, 0.0, c.now, c.now
	finished := false
	account := func() {
		span := c.now - since
		since = c.now
		done += span * float64(alive) * each
		t.Down += span * float64(n-alive) / float64(n)
	}
	var end *event
	plan := func() {
		if end != nil {
			end.off = true
		}
		left := math.Inf(1)
		if alive > 0 {
			left = max(0, tokens-done) / (float64(alive) * each)
		}
		end = c.after(left, func() { account(); finished = true })
	}
	var fail func()
	fail = func() {
		account()
		t.Interruptions++
		c.after(c.exponential(f.between(n)), fail)
		gone := min(host, alive)
		undone := min(done, c.rng.Float64()*f.Cache.Shard*float64(gone)*each)
		done -= undone
		t.Lost += undone / (float64(n) * each)
		alive -= gone
		c.after(f.Failures.Detect+f.Failures.Restart, func() { account(); alive += gone; plan() })
		plan()
	}
	c.after(c.exponential(f.between(n)), fail)
	plan()
	limit := began + patience*tokens/(float64(n)*each)
	c.run(func() bool { return finished || c.now > limit })
	t.Elapsed = c.now - began
	t.Useful = t.Elapsed - t.Down - t.Lost
	return t, finished
}
