package cpu

import (
	"time"

	"apr/device"
)

// OpStat is what one kind of operation has cost so far.
type OpStat struct {
	Op    device.Op
	Calls int64
	Time  time.Duration // wall time, all workers together
	FLOPs int64         // multiplications and additions of matrix products; 0 for other operations
}

type profile struct {
	stats [device.NumOps]OpStat
	start time.Time
}

// Profile returns what each kind of operation has cost since the stream was made or ResetProfile called.
func (s *Stream) Profile() []OpStat {
	var stats []OpStat
	for o, st := range s.prof.stats {
		if st.Calls > 0 {
			st.Op = device.Op(o)
			stats = append(stats, st)
		}
	}
	return stats
}

// ResetProfile sets all costs to zero.
func (s *Stream) ResetProfile() { s.prof.stats = [device.NumOps]OpStat{} }

// begin starts an operation; false means that the stream has failed and the operation must not run.
func (s *Stream) begin() bool {
	s.prof.start = time.Now()
	return s.err == nil
}

// end books an operation.
func (s *Stream) end(o device.Op, flops int64) {
	st := &s.prof.stats[o]
	st.Calls++
	st.Time += time.Since(s.prof.start)
	st.FLOPs += flops
}
