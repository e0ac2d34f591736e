package model

// ActivationBytes returns what Forward keeps for Backward at one position, in float32: per layer x, y1, qkv, attention,
// lse, x2, y2, gate and up, their product, and two 1/σ; the first x; and the final x, 1/σ and hidden state.
func (c Config) ActivationBytes() int64 {
	h, f := int64(c.HiddenSize), int64(c.IntermediateSize)
	layer := 4*h + int64(c.qkvDim()) + int64(c.qDim()) + int64(c.Heads) + 3*f + 2
	return 4 * (int64(c.Layers)*layer + 2*h + 1)
}
