// Package cluster simulates a distillation on many GPUs: how long it takes, what it costs and what is lost when parts
// fail. It compares three ways to use the same GPUs:
//
//	online      every rank runs teacher and student on its rows; gradients are summed over the ranks
//	precompute  first all GPUs write the teacher's cache, then ranks train the student from it
//	pool        some GPUs only teach, and feed fewer ranks that only train the student
//
// The simulation has two levels of events. Within a step, a compute stream and a communication stream of one rank are
// played through: gradients are reduced bucket by bucket during the backward pass, and what is left over afterwards is
// exposed (step.go). Over the run, steps, checkpoints, interruptions, restarts and the pool's buffer are events in
// virtual time (run.go, events.go). A File has measured phases of a step, links, failure rates and checkpoint times.
//
// Caveats. Ranks compute at the speed of the one GPU that was measured, and the slowest is waited for; a spare replaces
// what failed. Interruptions come at a constant rate (exponential intervals), independently. Nothing is known of steps
// smaller than the smallest that was measured: they are taken to last as long. Links have a bandwidth and a latency,
// and no other users.
package cluster

import "math"

// File is a job and the cluster that it is to run on. Times are in seconds, sizes in bytes.
type File struct {
	Job         Job
	Steps       []Phases // by falling number of tokens
	Jitter      float64  // standard deviation of a rank's step over its mean
	Gradients   Gradients
	Links       Links
	Failures    Failures
	Checkpoints Checkpoints
	Cache       Cache
	Pool        Pool
}

// Job is what is to be trained.
type Job struct {
	Tokens    float64 // of the data
	Epochs    float64
	RowTokens float64 // a rank has at least one row
}

// Phases are the measured times of one optimiser step of one GPU without other ranks.
type Phases struct {
	Tokens                                              float64
	Teacher, StudentForward, Loss, StudentBackward, Opt float64
}

// total is the time of the step on the one GPU.
func (p Phases) total() float64 {
	return p.Teacher + p.StudentForward + p.Loss + p.StudentBackward + p.Opt
}

// Gradients are what ranks exchange in a step.
type Gradients struct {
	Bytes   float64 // of all gradients of a rank
	Last    float64 // of Bytes: of the bucket that is complete only at the end of the backward pass
	Buckets float64 // into which the others are cut
	Weights float64 // bytes that are gathered after the update, with Zero1
	Zero1   bool    // each rank updates its shard: reduce-scatter and all-gather; else an all-reduce
}

// Links are the bus bandwidths that a GPU has in collectives.
type Links struct {
	PerHost        int     // GPUs of a host
	Host, Network  float64 // bytes a second, within a host and between hosts
	HostLatency    float64 // of a step of an algorithm
	NetworkLatency float64
}

// Failures are interruptions of whatever kind that stop a rank.
type Failures struct {
	GPUHours float64 // mean number between two; 0: none
	Detect   float64 // until the others know
	Restart  float64 // until the ranks are at work again, with the checkpoint loaded
}

// Checkpoints are written while training goes on, but for a pause.
type Checkpoints struct {
	Every   float64 // time between two; 0: Young's √(2·pause·mean time between interruptions)
	Pause   float64 // training waits
	Durable float64 // from the end of the pause until it can be resumed from
	Bytes   float64
	Keep    float64
}

// Cache is a teacher's cache on a store that all GPUs share.
type Cache struct {
	PerToken float64 // bytes
	Store    float64 // bytes a second of the whole store
	Shard    float64 // time to compute a shard: an interruption loses half of it on average
}

// Pool is how teachers feed students.
type Pool struct {
	PerToken float64 // bytes of a token's rows on the network
	Ahead    float64 // steps that the buffer holds
}

// phases returns the times of a step of so many tokens on one GPU: on straight lines between what was measured. A step
// smaller than the smallest measured one takes as long as that; tokens are at most those of the largest.
func (f *File) phases(tokens float64) Phases {
	for i := len(f.Steps) - 1; i >= 0; i-- {
		if tokens > f.Steps[i].Tokens {
			continue
		}
		if i == len(f.Steps)-1 {
			break
		}
		hi, lo := f.Steps[i], f.Steps[i+1]
		at := (tokens - lo.Tokens) / (hi.Tokens - lo.Tokens)
		mix := func(a, b float64) float64 { return a + at*(b-a) }
		return Phases{Tokens: tokens, Teacher: mix(lo.Teacher, hi.Teacher),
			StudentForward: mix(lo.StudentForward, hi.StudentForward), Loss: mix(lo.Loss, hi.Loss),
			StudentBackward: mix(lo.StudentBackward, hi.StudentBackward), Opt: mix(lo.Opt, hi.Opt)}
	}
	p := f.Steps[len(f.Steps)-1]
	p.Tokens = tokens
	return p
}

// between is the mean time between interruptions of n GPUs.
func (f *File) between(n int) float64 {
	if f.Failures.GPUHours == 0 {
		return math.Inf(1)
	}
	return f.Failures.GPUHours * 3600 / float64(n)
}

// interval is the time between checkpoints of n GPUs.
//
//	Young 1974: √(2·pause·mean time between interruptions)
func (f *File) interval(n int) float64 {
	if f.Checkpoints.Every > 0 {
		return f.Checkpoints.Every
	}
	if f.Failures.GPUHours == 0 {
		return math.Inf(1)
	}
	return math.Sqrt(2 * f.Checkpoints.Pause * f.between(n))
}
