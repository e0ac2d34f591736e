package kernel

import (
	"apr/device"
	"apr/tensor"
)

// UseAttentionTF32 lets AttentionTF32Serves say yes; tests that compare kernels turn it off.
var UseAttentionTF32 = true

// tf32Tiles are those of attention_tf32_d<width>.cu. What they own passes through the stages where registers can keep it.
var tf32Tiles = map[int]flashTile{
	64: {
		module: "attention_tf32_d64", size: 4,
		forward: flashBlock{threads: 128, rows: 128, tile: 32, streamed: 2},
		dq:      flashBlock{threads: 128, rows: 64, tile: 32, streamed: 2},
		dkv:     flashBlock{threads: 128, rows: 64, tile: 32, streamed: 2, extra: 256},
	},
	128: {
		module: "attention_tf32_d128", size: 4,
		forward: flashBlock{threads: 256, rows: 128, tile: 32, streamed: 2},
		dq:      flashBlock{threads: 128, rows: 64, tile: 16, own: 2, streamed: 2},
		dkv:     flashBlock{threads: 128, rows: 64, tile: 16, own: 2, streamed: 2, extra: 128},
	},
}

// AttentionTF32Serves reports whether AttentionTF32, or AttentionBackwardTF32, serves these operands: float32 heads of
// 64 and 128 columns whose rows begin at multiples of 16 bytes, several queries a row, without windows that hide,
// documents and soft-caps.
func AttentionTF32Serves(a device.Attn, first Mat, ms ...Mat) bool {
	if _, ok := tf32Tiles[a.HeadDim]; !ok || !UseAttentionTF32 || PlainAttention || a.QLen == 1 || limits(a, first) {
		return false
	}
	for _, m := range ms {
		if m.Type != tensor.F32 || !rowsAt(m, 16) {
			return false
		}
	}
	return true
}

// AttentionTF32 is Attention for operands that AttentionTF32Serves, where products may round. q, k, v and probabilities
// are rounded to the nearest number of 10 bits of mantissa, ties away from zero, and multiplied on tensor cores; sums,
// statistics and o are float32.
//
// As in Attention every thread block reads the keys and values that its 128 queries see. A sum has its products in
// order of the inner dimension, 8 at a time, whatever the device.
func AttentionTF32(queue Queue, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	need(AttentionTF32Serves(a, first, o, q, k, v), "AttentionTF32", "operands it does not serve")
	if a.Batch > 0 && a.QLen > 0 {
		tf32Tiles[a.HeadDim].attention(queue, newAttention(o, lse, q, k, v, a, first))
	}
}

// AttentionBackwardTF32 is AttentionBackward for operands that AttentionTF32Serves, where products may round: q, k, v,
// do, p and ds as AttentionTF32 does. Sums have an order that depends on the shape alone.
func AttentionBackwardTF32(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	need(AttentionTF32Serves(a, first, dq, dk, dv, do, o, q, k, v), "AttentionBackwardTF32", "operands it does not serve")
	if a.Batch == 0 || a.KLen == 0 {
		return
	}
	args, room := newAttentionBackward(queue, dq, dk, dv, do, o, lse, q, k, v, a, first)
	tf32Tiles[a.HeadDim].backward(queue, args, room)
}
