package teacher_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
	"apr/teacher"
	"apr/tensor"
)

const path = "../testdata/golden/qwen2/tied_gqa/teacher"

func load(t testing.TB) (*model.Model, device.Stream) {
	t.Helper()
	s, _, m := modeltest.Load(t, path, cpu.Options{})
	return m, s
}

// batch returns rows of random ids whose mask keeps about the given share.
func batch(rows, seqLen, vocab int, keep float64) corpus.Batch {
	rng := rand.New(rand.NewPCG(1, 2))
	n := rows * seqLen
	b := corpus.Batch{Rows: rows, SeqLen: seqLen, Tokens: make([]int32, n), Targets: make([]int32, n), Mask: make([]uint8, n)}
	for i := range n {
		b.Tokens[i], b.Targets[i] = rng.Int32N(int32(vocab)), rng.Int32N(int32(vocab))
		if rng.Float64() < keep {
			b.Mask[i] = 1
		}
	}
	return b
}

// logits runs a teacher over b and returns the logits of all kept rows, asked for in pieces of chunk rows.
func logits(t testing.TB, te *teacher.Resident, s device.Stream, b corpus.Batch, vocab, chunk int) []float32 {
	t.Helper()
	db := model.NewBatch(te.Model.Device(), b.Rows, b.SeqLen)
	db.Load(s, b, b.Rows)
	te.Begin(s, db)
	defer te.End(s)
	var all []float32
	for lo := 0; lo < db.N; lo += chunk {
		hi := min(lo+chunk, db.N)
		dst := s.Temp("logits", device.Logits, tensor.F32, hi-lo, vocab)
		te.Logits(s, lo, hi, dst)
		host := make([]float32, (hi-lo)*vocab)
		if err := s.Download(host, dst); err != nil {
			t.Fatal(err)
		}
		s.Release(dst)
		all = append(all, host...)
	}
	return all
}

// However many sequences are computed at one time, and in whatever pieces logits are asked for, they have the same bits.
func TestGroupsAndChunks(t *testing.T) {
	m, s := load(t)
	for name, keep := range map[string]float64{"all rows": 2, "some rows": 0.6} {
		b := batch(5, 9, m.Config.Vocab, keep)
		want := logits(t, &teacher.Resident{Model: m}, s, b, m.Config.Vocab, 1000)
		if n := b.TargetCount() * m.Config.Vocab; len(want) != n {
			t.Fatalf("%s: %d logits, want %d", name, len(want), n)
		}
		for _, group := range []int{1, 2, 3, 5, 9} {
			for _, chunk := range []int{1000, 7, 1} {
				if got := logits(t, &teacher.Resident{Model: m, Group: group}, s, b, m.Config.Vocab, chunk); !slices.Equal(got, want) {
					t.Errorf("%s: groups of %d in chunks of %d give other bits", name, group, chunk)
				}
			}
		}
	}
}

// Masked rows are left out and do not change the others.
func TestKeptRows(t *testing.T) {
	m, s := load(t)
	b := batch(4, 11, m.Config.Vocab, 0.5)
	all := b
	all.Mask = slices.Repeat([]uint8{1}, len(b.Mask))
	whole := logits(t, &teacher.Resident{Model: m}, s, all, m.Config.Vocab, 1000)
	var want []float32
	for i, k := range b.Mask {
		if k != 0 {
			want = append(want, whole[i*m.Config.Vocab:(i+1)*m.Config.Vocab]...)
		}
	}
	if got := logits(t, &teacher.Resident{Model: m, Group: 3}, s, b, m.Config.Vocab, 5); !slices.Equal(got, want) {
		t.Error("the logits are not those of the kept rows")
	}
}

// A smaller vocabulary takes the first columns; nothing stands in for the others.
func TestTruncatedVocabulary(t *testing.T) {
	m, s := load(t)
	b := batch(2, 7, m.Config.Vocab, 0.7)
	whole := logits(t, &teacher.Resident{Model: m}, s, b, m.Config.Vocab, 1000)
	for _, v := range []int{1, 300, 320, 351} {
		contracttest.Cases(t, 1)
		var want []float32
		for r := range b.TargetCount() {
			want = append(want, whole[r*m.Config.Vocab:][:v]...)
		}
		if got := logits(t, &teacher.Resident{Model: m}, s, b, v, 4); !slices.Equal(got, want) {
			t.Errorf("%d of %d columns are not the first ones", v, m.Config.Vocab)
		}
	}
}
