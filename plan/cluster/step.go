package cluster

import "math"

// What a rank computes in a step.
const (
	withTeacher = true
	studentOnly = false
)

// stepTime plays one step of n ranks through, each with so many tokens: a compute stream and a communication stream.
//
//	compute:        teacher | forward | loss | backward ........... | optimiser
//	communication:  gather of the last update      b1  b2  b3  last |
//
// The gather of weights (ZeRO-1) runs beside the teacher and has to be over before the student's forward pass. Bucket i
// is reduced once it is ready and the stream is free; Last is ready at the end. exposed is the time in which the rank
// only communicates. Every step waits for the slowest of n ranks, whose times are normal: it takes 1 + jitter·E[max]
// as long.
func (f *File) stepTime(n int, tokens float64, teaches bool) (seconds, exposed float64) {
	p := f.phases(tokens)
	compute, wire := 0.0, 0.0
	wait := func() {
		if wire > compute {
			exposed += wire - compute
			compute = wire
		}
	}
	g := f.Gradients
	if g.Zero1 && n > 1 {
		wire = f.Links.gather(n, g.Weights)
	}
	if teaches {
		compute = p.Teacher
	}
	wait()
	compute += p.StudentForward + p.Loss
	reduce := f.Links.sum
	if g.Zero1 {
		reduce = f.Links.gather // a reduce-scatter moves what an all-gather does
	}
	if n > 1 {
		early, begin := g.Bytes-g.Last, compute
		for i := range int(g.Buckets) {
			done := float64(i+1) / g.Buckets * (early / g.Bytes)
			wire = max(wire, begin+done*p.StudentBackward) + reduce(n, early/g.Buckets)
		}
		if g.Last > 0 {
			wire = max(wire, begin+p.StudentBackward) + reduce(n, g.Last)
		}
	}
	compute += p.StudentBackward
	wait()
	if n > 1 {
		norm := f.Links.sum(n, 8) // one norm over all gradients, one verdict
		compute, exposed = compute+norm, exposed+norm
	}
	if g.Zero1 {
		compute += p.Opt / float64(n)
	} else {
		compute += p.Opt
	}
	slowest := 1 + f.Jitter*expectedMax(n)
	return compute * slowest, exposed
}

// expectedMax is the mean of the largest of n standard normal numbers, by Blom: Φ⁻¹((n−0.375)/(n+0.25)).
func expectedMax(n int) float64 {
	p := (float64(n) - 0.375) / (float64(n) + 0.25)
	return max(0, math.Sqrt2*math.Erfinv(2*p-1))
}

// gather is the time of an all-gather, or of a reduce-scatter, of so many bytes among n ranks: within hosts, where each
// of h ranks has bytes/h, and between m hosts, where each sends its part.
//
//	(h−1)/h · bytes/host + (m−1)/m · (bytes/h)/network + latencies of ⌈log₂⌉ steps
func (l Links) gather(n int, bytes float64) float64 {
	h := min(n, l.PerHost)
	m := (n + l.PerHost - 1) / l.PerHost
	t := 0.0
	if h > 1 {
		t += float64(h-1)/float64(h)*bytes/l.Host + l.HostLatency*math.Ceil(math.Log2(float64(h)))
	}
	if m > 1 {
		t += float64(m-1)/float64(m)*bytes/float64(h)/l.Network + l.NetworkLatency*math.Ceil(math.Log2(float64(m)))
	}
	return t
}

// sum is the time of an all-reduce: a reduce-scatter and an all-gather.
func (l Links) sum(n int, bytes float64) float64 { return 2 * l.gather(n, bytes) }
