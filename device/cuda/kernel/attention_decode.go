package kernel

import "apr/tensor"

const decodeModule = "attention_decode"

// decodeForward serves a single query of every batch row, one block a head; the keys it sees are read once per query
// head of their group.
func decodeForward(q Queue, a *attentionArgs, t tensor.DType) {
	a.start(q, decodeModule, "attention_decode"+plainSuffix(t), [3]int{int(a.heads), int(a.batch), 1}, 256, 0)
}
