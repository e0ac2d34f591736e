package devicetest

import (
	"apr/device"
	"apr/internal/ref"
)

func init() {
	right := ref.AttentionDivergence
	plant := func(name string, wrong func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat)) {
		mutants = append(mutants, mutant{name, "maps/", func(o *ops) { o.maps = wrong }})
	}
	scaled := func(by func(s, t ref.Map) float64) func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		return func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
			sum, dq, dk, db := right(s, t, counts, w, n)
			return sum, ref.Scale(dq, by(s, t)), ref.Scale(dk, by(s, t)), ref.Scale(db, by(s, t))
		}
	}
	plant("gradient of maps divided by the heads twice", scaled(func(s, _ ref.Map) float64 { return 1 / float64(s.Attn.Heads) }))
	plant("gradient of maps without the teacher's weight", scaled(func(_, _ ref.Map) float64 { return .99 }))
	plant("maps of the first head alone", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		sum, _, _, _ := right(firstHead(s), firstHead(t), counts, w, n)
		_, dq, dk, db := right(s, t, counts, w, n)
		return sum, dq, dk, db
	})
	plant("masked rows of maps counted", func(s, t ref.Map, _ []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		return right(s, t, nil, w, n)
	})
	plant("sinks left out of maps", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		s.Sinks, t.Sinks = nil, nil
		return right(s, t, counts, w, n)
	})
	plant("maps across documents", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		s.First, t.First = nil, nil
		return right(s, t, counts, w, n)
	})
	plant("maps without windows", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		s.Attn.Window, t.Attn.Window = 0, 0
		return right(s, t, counts, w, n)
	})
	plant("soft-cap of maps without its slope", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		sum, _, _, db := right(s, t, counts, w, n)
		s.Attn.Cap = 0
		_, dq, dk, _ := right(s, t, counts, w, n)
		return sum, dq, dk, db
	})
	plant("student and teacher of maps exchanged", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		_, dq, dk, db := right(s, t, counts, w, n)
		if s.Attn.Sees(t.Attn) && t.Attn.Sees(s.Attn) && (s.Sinks == nil) == (t.Sinks == nil) {
			sum, _, _, _ := right(t, s, counts, w, n)
			return sum, dq, dk, db
		}
		return 0, dq, dk, db
	})
	plant("weight in the divergence of maps", func(s, t ref.Map, counts []bool, w, n float64) (float64, ref.Mat, ref.Mat, ref.Mat) {
		sum, dq, dk, db := right(s, t, counts, w, n)
		return w * sum, dq, dk, db
	})
}

// firstHead is a side of which only the first query head is there.
func firstHead(m ref.Map) ref.Map {
	d := m.Attn.HeadDim
	m.Q, m.K = m.Q.ColRange(0, d), m.K.ColRange(0, d)
	m.Attn.Heads, m.Attn.KVHeads = 1, 1
	if m.Sinks != nil {
		m.Sinks = m.Sinks[:1]
	}
	m.Attn.Sinks, m.Attn.DSinks = device.Tensor{}, device.Tensor{}
	return m
}
