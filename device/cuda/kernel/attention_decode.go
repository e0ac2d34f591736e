package kernel

const (
	decodeModule = "attention_decode"
	decodeShare  = 768 // keys from which on another block takes some
	decodeSplits = 64  // blocks of a head at most
	decodePart   = 258 // floats of a block's sums
)

// decodeForward serves a single query of every batch row, one block a head or, with many keys, several, whose sums a second
// kernel joins. The keys that a query sees are read once per query head of their group.
func decodeForward(queue Queue, a *attentionArgs, q, k, v Mat) {
	heads, batch := int(a.heads), int(a.batch)
	if packWidth(int(a.d), q, k, v) == 1 {
		a.start(queue, decodeModule, "attention_decode"+plainSuffix(q.Type), [3]int{heads, batch, 1}, 256, 0)
		return
	}
	splits := min(ceil(int(a.qOffset)+1, decodeShare), decodeSplits, max(1, MaxScratch/(4*decodePart*max(1, heads*batch))))
	a.splits = int32(splits)
	if splits > 1 {
		a.part = queue.Scratch(4 * decodePart * splits * batch * heads)
	}
	a.start(queue, decodeModule, "attention_decode_packs"+plainSuffix(q.Type), [3]int{heads, batch, splits}, 512, 0)
	if splits > 1 {
		a.start(queue, decodeModule, "attention_decode_join"+plainSuffix(q.Type), [3]int{heads, batch, 1}, 256, 0)
	}
}
