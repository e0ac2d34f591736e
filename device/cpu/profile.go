package cpu

import "time"

// OpStat is what one kind of operation has cost so far.
type OpStat struct {
	Op    string
	Calls int64
	Time  time.Duration // wall time, all workers together
	FLOPs int64         // multiplications and additions of matrix products; 0 for other operations
}

// op numbers the operations in the profile.
type op int

const (
	opZero op = iota
	opCopy
	opEmbed
	opEmbedBackward
	opRMSNorm
	opRMSNormBackward
	opMatMul
	opMatMulInputGrad
	opMatMulWeightGrad
	opRotate
	opAttention
	opAttentionBackward
	opSwiGLU
	opSwiGLUBackward
	opGather
	opScatter
	opLoss
	opVerdict
	opAdamW
	opArgMax
	numOps
)

var opNames = [numOps]string{
	"Zero", "Copy", "Embed", "EmbedBackward", "RMSNorm", "RMSNormBackward", "MatMul", "MatMulInputGrad",
	"MatMulWeightGrad", "Rotate", "Attention", "AttentionBackward", "SwiGLU", "SwiGLUBackward", "Gather", "Scatter",
	"Loss", "Verdict", "AdamW", "ArgMax",
}

type profile struct {
	stats [numOps]OpStat
	start time.Time
}

// Profile returns what each kind of operation has cost since the stream was made or ResetProfile called.
func (s *Stream) Profile() []OpStat {
	var stats []OpStat
	for o, st := range s.prof.stats {
		if st.Calls > 0 {
			st.Op = opNames[o]
			stats = append(stats, st)
		}
	}
	return stats
}

// ResetProfile sets all costs to zero.
func (s *Stream) ResetProfile() { s.prof.stats = [numOps]OpStat{} }

// begin starts an operation; false means that the stream has failed and the operation must not run.
func (s *Stream) begin() bool {
	s.prof.start = time.Now()
	return s.err == nil
}

// end books an operation.
func (s *Stream) end(o op, flops int64) {
	st := &s.prof.stats[o]
	st.Calls++
	st.Time += time.Since(s.prof.start)
	st.FLOPs += flops
}
