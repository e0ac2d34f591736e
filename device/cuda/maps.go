package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
)

// CompareMaps adds the divergence of attention maps to the record, and its gradient to dq, dk and own.Attn.DSinks: see
// device.MapComparer.
func (s *Stream) CompareMaps(dq, dk device.Tensor, own, big device.AttnMap, rows device.Tensor, weight float64) {
	device.CheckCompareMaps(dq, dk, own, big, rows, weight)
	a := own.Attn
	if o := s.begin("CompareMaps", dq, dk, a.DSinks, own.Q, own.K, own.LSE, a.Sinks, a.First, big.Q, big.K, big.LSE, big.Attn.Sinks, rows); o != nil {
		o.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		kernel.CompareMaps(o, mat(dq), mat(dk), mat(a.DSinks), mapOf(own), mapOf(big), mat(a.First), mat(rows), weight)
		o.end()
	}
}

// mapOf returns one side as the launcher takes it.
func mapOf(m device.AttnMap) kernel.Map {
	return kernel.Map{Q: mat(m.Q), K: mat(m.K), LSE: mat(m.LSE), Sinks: mat(m.Attn.Sinks), Attn: m.Attn}
}
