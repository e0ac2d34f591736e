package kernel

import "apr/device"

const (
	decodeModule       = "attention_decode"
	decodeCappedModule = "attention_decode_capped"
	decodeShare        = 768 // keys from which on another block takes some
	decodeSplits       = 64  // blocks of a head at most
	decodePart         = 258 // floats of a thread block's sums
)

// decodeForward serves a single query of every batch row, one thread block a head or, with many keys, several, whose
// sums a second kernel joins. The keys that a query sees are read once per query head of their group. With a window the
// keys before it are left out: the first that is seen is the kernels' key 0.
func decodeForward(queue Queue, o, lse, q, k, v Mat, a device.Attn) {
	if before := a.QOffset + 1 - a.Window; a.Window > 0 && before > 0 {
		for _, m := range []*Mat{&k, &v} {
			m.Ptr += uint64(before * m.Stride * m.Type.BlockBytes())
		}
		a.QOffset, a.KLen, a.Window = a.QOffset-before, a.KLen-before, 0
	}
	args := newAttention(o, lse, q, k, v, a, Mat{})
	heads, batch := a.Heads, a.Batch
	module, name := decodeModule, decodeModule
	if a.Cap > 0 {
		module, name = decodeCappedModule, decodeCappedModule
	}
	if packWidth(a.HeadDim, q, k, v) == 1 {
		args.start(queue, module, name+plainSuffix(q.Type), [3]int{heads, batch, 1}, 256, 0)
		return
	}
	room := MaxScratch
	if !a.Sinks.IsZero() {
		room -= sinkScratch
	}
	splits := min(ceil(a.QOffset+1, decodeShare), decodeSplits, max(1, room/(4*decodePart*max(1, heads*batch))))
	args.splits = int32(splits)
	if splits > 1 {
		args.part = queue.Scratch(4 * decodePart * splits * batch * heads)
	}
	args.start(queue, module, name+"_packs"+plainSuffix(q.Type), [3]int{heads, batch, splits}, 512, 0)
	if splits > 1 {
		args.start(queue, decodeModule, "attention_decode_join"+plainSuffix(q.Type), [3]int{heads, batch, 1}, 256, 0)
	}
}
