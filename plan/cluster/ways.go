package cluster

import (
	"fmt"
	"math"
	"slices"
)

// Ways to use the GPUs, in the order in which they are shown.
const (
	wayOnline     = "online"
	wayPrecompute = "precompute"
	wayPool       = "pool"
)

// trials are the runs that a Row is the mean of, each with other interruptions.
const trials = 16

// Row is one way with one number of GPUs.
type Row struct {
	Way      string `json:"way"`
	GPUs     int    `json:"gpus"`
	Used     int    `json:"gpus_used"`
	Students int    `json:"students"` // ranks that train
	Teachers int    `json:"teachers"` // GPUs that only teach

	TokensPerStep float64 `json:"tokens_per_step"`
	StepMS        float64 `json:"step_ms"`
	ExposedMS     float64 `json:"exposed_ms"` // of the step: communication that nothing hides
	CheckpointMin float64 `json:"checkpoint_minutes"`

	Finishes        bool    `json:"finishes"` // else interruptions leave no progress, and what follows is 0
	TokensPerSecond float64 `json:"tokens_per_second"`
	Efficiency      float64 `json:"efficiency"`     // tokens a second and GPU over those of one GPU alone
	Effective       float64 `json:"effective_time"` // share of the time that went into steps that stay
	Hours           float64 `json:"hours"`
	CacheHours      float64 `json:"cache_hours"` // of Hours: the teacher's cache is written
	GPUHours        float64 `json:"gpu_hours"`
	LostGPUHours    float64 `json:"lost_gpu_hours"`    // steps that were undone
	StoppedGPUHours float64 `json:"stopped_gpu_hours"` // restarts, and checkpoints that are waited for
	Interruptions   float64 `json:"interruptions"`
	StorageBytes    float64 `json:"storage_bytes"` // cache and checkpoints
}

// Limit is the number of GPUs with which a way reaches 99 % of the speed that it has with any number.
type Limit struct {
	Way    string `json:"way"`
	GPUs   int    `json:"gpus"`
	Reason string `json:"reason"`
}

// Plan compares the ways.
type Plan struct {
	MaxStepTokens float64 `json:"max_step_tokens"`
	OneGPU        float64 `json:"one_gpu_tokens_per_second"`
	Rows          []Row   `json:"rows"`
	Limits        []Limit `json:"limits"`
}

// Simulate compares the ways for each number of GPUs. A step has at most maxTokens tokens: beyond that a larger batch
// makes fewer updates of the same data, and another student.
func (f *File) Simulate(gpus []int, maxTokens float64) Plan {
	p := Plan{MaxStepTokens: maxTokens, OneGPU: f.oneGPU()}
	ways := f.ways()
	for _, n := range gpus {
		for _, way := range ways {
			if s := f.shape(way, n, maxTokens); s != nil {
				p.Rows = append(p.Rows, f.row(*s, n))
			}
		}
	}
	for _, way := range ways {
		if l := f.limit(way, maxTokens); l != nil {
			p.Limits = append(p.Limits, *l)
		}
	}
	return p
}

// ways are those that File describes enough for.
func (f *File) ways() []string {
	all := []string{wayOnline}
	if f.Steps[0].Teacher == 0 {
		return all
	}
	if f.Cache.PerToken > 0 {
		all = append(all, wayPrecompute)
	}
	if f.Pool.Ahead > 0 {
		all = append(all, wayPool)
	}
	return all
}

// oneGPU is the speed of one GPU that does everything, in tokens a second.
func (f *File) oneGPU() float64 { return f.Steps[0].Tokens / f.Steps[0].total() }

// shape is how a way uses its GPUs.
type shape struct {
	way               string
	students          int
	teachers          int
	tokens            float64 // of a student in a step
	seconds, exposed  float64 // of a step
	speed             float64 // tokens a second while nothing fails; of precompute: in its training
	teaches           bool
	supply            float64 // of the pool: tokens a second
	cacheGPUs         int
	storeOrLinkLimits bool
}

// share is the tokens of each of n ranks in a step: whole rows, at most what was measured; 0: fewer than a row.
func (f *File) share(n int, maxTokens float64) float64 {
	most := math.Floor(maxTokens / float64(n) / f.Job.RowTokens)
	return min(most*f.Job.RowTokens, f.Steps[0].Tokens)
}

// shape chooses the fastest use of at most n GPUs; nil: the way needs more.
func (f *File) shape(way string, n int, maxTokens float64) (best *shape) {
	try := func(s *shape) {
		if s != nil && (best == nil || s.speed > best.speed*(1+1e-9)) {
			best = s
		}
	}
	if way == wayPool {
		for students := 1; students < n; students++ {
			try(f.pool(students, n-students, maxTokens))
		}
		return best
	}
	ranks := []int{n, min(n, f.Links.PerHost)}
	for _, s := range f.Steps { // more ranks than that have less each
		ranks = append(ranks, min(n, max(1, int(maxTokens/s.Tokens))))
	}
	slices.Sort(ranks) // of equal speeds the fewest ranks
	for _, r := range ranks {
		try(f.ranks(way, r, maxTokens))
	}
	if best != nil {
		best.cacheGPUs = n
	}
	return best
}

// ranks is a shape of r ranks without a pool.
func (f *File) ranks(way string, r int, maxTokens float64) *shape {
	s := &shape{way: way, students: r, tokens: f.share(r, maxTokens), teaches: way == wayOnline}
	if s.tokens == 0 {
		return nil
	}
	s.seconds, s.exposed = f.stepTime(r, s.tokens, s.teaches)
	if way == wayPrecompute && f.Cache.Store > 0 {
		s.slow(float64(r) * s.tokens * f.Cache.PerToken / f.Cache.Store)
	}
	s.speed = float64(r) * s.tokens / s.seconds
	return s
}

// slow makes a step last at least so long.
func (s *shape) slow(seconds float64) {
	if seconds > s.seconds {
		s.seconds, s.storeOrLinkLimits = seconds, true
	}
}

// pool is a shape of students and as many teachers as they need, of at most so many.
func (f *File) pool(students, teachers int, maxTokens float64) *shape {
	s := &shape{way: wayPool, students: students, tokens: f.share(students, maxTokens)}
	if s.tokens == 0 {
		return nil
	}
	s.seconds, s.exposed = f.stepTime(students, s.tokens, studentOnly)
	link := f.Links.Network
	if students+teachers <= f.Links.PerHost {
		link = f.Links.Host
	}
	s.slow(s.tokens * f.Pool.PerToken / link)
	each := f.Steps[0].Tokens / f.Steps[0].Teacher
	need := float64(students) * s.tokens / s.seconds
	s.teachers = min(teachers, int(math.Ceil(need/each*(1-1e-9))))
	s.supply = float64(s.teachers) * each
	s.speed = min(need, s.supply)
	return s
}

// limit finds the fewest GPUs with 99 % of the largest speed.
func (f *File) limit(way string, maxTokens float64) *Limit {
	most := max(1, int(maxTokens/f.Job.RowTokens)) // ranks have a row at least
	if way == wayPool {
		perRow := f.Steps[0].Teacher / f.Steps[0].Tokens * f.Job.RowTokens
		step, _ := f.stepTime(1, f.Job.RowTokens, studentOnly)
		most += int(math.Ceil(float64(most)*perRow/step)) + 1
	}
	top := f.shape(way, most, maxTokens)
	if top == nil {
		return nil
	}
	lo, hi := 0, most // hi is enough, lo is not
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if s := f.shape(way, mid, maxTokens); s != nil && s.speed >= 0.99*top.speed {
			hi = mid
		} else {
			lo = mid
		}
	}
	s := f.shape(way, hi, maxTokens)
	l := &Limit{Way: way, GPUs: hi}
	switch step := float64(s.students) * s.tokens; {
	case s.storeOrLinkLimits:
		l.Reason = "rows arrive no faster"
	case way == wayPool:
		l.Reason = fmt.Sprintf("%d students in steps of %.0f tokens, fed by %d teachers", s.students, step, s.teachers)
	case way == wayPrecompute:
		l.Reason = fmt.Sprintf("training takes steps of %.0f tokens; more GPUs only write the cache sooner", step)
	default:
		l.Reason = fmt.Sprintf("steps have %.0f tokens", step)
	}
	return l
}

// row simulates a shape with n GPUs at hand.
func (f *File) row(s shape, n int) Row {
	r := Row{Way: s.way, GPUs: n, Students: s.students, Teachers: s.teachers, Used: s.students + s.teachers,
		TokensPerStep: float64(s.students) * s.tokens, StepMS: 1e3 * s.seconds, ExposedMS: 1e3 * s.exposed, Finishes: true}
	tokens := f.Job.Tokens * f.Job.Epochs
	steps := math.Ceil(tokens / r.TokensPerStep)
	if every := f.interval(s.students); !math.IsInf(every, 1) {
		r.CheckpointMin = every / 60
		r.StorageBytes = f.Checkpoints.Bytes * f.Checkpoints.Keep
	}
	var trained, cached Times
	for seed := range uint64(trials) {
		t, ok := f.train(newClock(seed), s.students, s.seconds, steps, f.feed(s))
		trained.add(t)
		if s.way == wayPrecompute {
			c, also := f.precompute(newClock(seed+trials), s.cacheGPUs, f.Job.Tokens)
			cached.add(c)
			ok = ok && also
		}
		if r.Finishes = ok; !ok {
			break
		}
	}
	trained.scale(1. / trials)
	cached.scale(1. / trials)
	if s.way == wayPrecompute {
		r.Used = s.cacheGPUs
		r.StorageBytes += f.Job.Tokens * f.Cache.PerToken
	}
	if !r.Finishes {
		return r
	}
	elapsed := trained.Elapsed + cached.Elapsed
	ranks, writers := float64(s.students+s.teachers)/3600, float64(s.cacheGPUs)/3600
	r.Hours, r.CacheHours = elapsed/3600, cached.Elapsed/3600
	r.TokensPerSecond = tokens / elapsed
	r.Efficiency = r.TokensPerSecond / float64(n) / f.oneGPU()
	r.Effective = (trained.Useful + cached.Useful) / elapsed
	r.GPUHours = trained.Elapsed*ranks + cached.Elapsed*writers
	r.LostGPUHours = trained.Lost*ranks + cached.Lost*writers
	r.StoppedGPUHours = (trained.Down+trained.Paused)*ranks + cached.Down*writers
	r.Interruptions = trained.Interruptions + cached.Interruptions
	return r
}

// feed is the pool of a shape, its buffer full; nil: there is none.
func (f *File) feed(s shape) *feed {
	if s.way != wayPool {
		return nil
	}
	hosts := max(1, s.teachers/f.Links.PerHost)
	return &feed{teachers: s.teachers, hosts: hosts, alive: hosts, room: f.Pool.Ahead, level: f.Pool.Ahead,
		rate: s.supply / (float64(s.students) * s.tokens) / float64(hosts)}
}
