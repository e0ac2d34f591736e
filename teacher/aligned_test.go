package teacher_test

import (
	"math"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
	"apr/tensor"
	"apr/tokenizer"
	"apr/tokenizer/align"
)

// oracle is a teacher that knows what comes next: the logits of each of its positions are high for the next of its ids.
type oracle struct {
	ids    int
	begun  int
	next   []int32 // of the kept positions
	batch  *corpus.Batch
	closed int
}

func (o *oracle) Begin(device.Stream, *model.Batch) { o.begun++ }
func (o *oracle) End(device.Stream)                 { o.closed++ }

func (o *oracle) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	v := make([]float32, (hi-lo)*o.ids)
	for i, id := range o.next[lo:hi] {
		v[i*o.ids+int(id)] = 60
	}
	s.Upload(dst, v)
}

// aligned is an Aligned of two tokenizers whose inner teacher is an oracle.
func aligned(t *testing.T, student, big string) (*teacher.Aligned, *oracle, device.Stream) {
	t.Helper()
	load := func(name string) *tokenizer.Tokenizer {
		dir := "../testdata/tokenizers/" + name
		if name == "gosrc" {
			dir = "../testdata/models/gosrc"
		}
		tok, err := tokenizer.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	p, err := align.NewPair(load(student), load(big))
	if err != nil {
		t.Fatal(err)
	}
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	o := &oracle{ids: p.W.TeacherIDs}
	return &teacher.Aligned{Inner: o, Device: d, Pair: p, Most: 256, Temperature: 2}, o, d.NewStream()
}

// rowsOf makes a batch of texts in the student's ids, of which every third target does not count.
func rowsOf(t *testing.T, p *align.Pair, seqLen int, texts ...string) corpus.Batch {
	t.Helper()
	end, err := corpus.EndOfText(p.Student)
	if err != nil {
		t.Fatal(err)
	}
	b := corpus.Batch{Rows: len(texts), SeqLen: seqLen, Tokens: make([]int32, len(texts)*seqLen),
		Targets: make([]int32, len(texts)*seqLen), Mask: make([]uint8, len(texts)*seqLen)}
	for r, s := range texts {
		ids := append(p.Student.Append(p.Student.Begin(nil), s, tokenizer.PlainText), end)
		for i := range seqLen {
			b.Tokens[r*seqLen+i], b.Targets[r*seqLen+i] = end, end
			if i+1 < len(ids) {
				b.Tokens[r*seqLen+i], b.Targets[r*seqLen+i] = ids[i], ids[i+1]
				if i%3 != 2 {
					b.Mask[r*seqLen+i] = 1
				}
			}
		}
	}
	return b
}

// A teacher that knows its next ids teaches the student's next ids, at every position that it teaches, whichever of
// both puts a token before a text: a shift by one is seen. Rows that it does not teach keep what they hold, whatever
// the cut.
func TestAlignedTeachesTheNextID(t *testing.T) {
	texts := []string{"func main() { fmt.Println(\"hello\") }\n", "if err != nil {\n\treturn nil, err\n}\n", "x := 12345"}
	cases := 0
	for _, pair := range [][2]string{{"gosrc", "gemma"}, {"gemma", "gosrc"}, {"gosrc", "gpt-2"}, {"llama-bpe", "gosrc"},
		{"gosrc", "llama-bpe"}, {"mistral", "gemma"}} {
		a, o, s := aligned(t, pair[0], pair[1])
		b := rowsOf(t, a.Pair, 48, texts...)
		if err := a.Align(b); err != nil {
			t.Fatal(err)
		}
		o.next = nextOf(t, a, b)
		batch := model.NewBatch(a.Device, b.Rows, b.SeqLen)
		batch.Load(s, b, b.Rows)
		a.Begin(s, batch)
		counts := a.Counts()
		if counts.Taught == 0 || counts.Taught != len(o.next) || counts.Lost != 0 || counts.Targets != batch.N {
			t.Fatalf("%v: %+v for %d positions", pair, counts, len(o.next))
		}
		v, taught := a.Pair.W.StudentIDs, 0
		targets := kept(b)
		for lo := 0; lo < batch.N; lo += 7 {
			hi := min(lo+7, batch.N)
			dst := s.Temp("dst", device.Logits, tensor.F32, hi-lo, v)
			before := make([]float32, (hi-lo)*v)
			for i := range before {
				before[i] = 5
			}
			s.Upload(dst, before)
			a.Logits(s, lo, hi, dst)
			got := make([]float32, len(before))
			if err := s.Download(got, dst); err != nil {
				t.Fatal(err)
			}
			s.Release(dst)
			for r := range hi - lo {
				row := got[r*v : (r+1)*v]
				if row[0] == 5 && row[v-1] == 5 {
					continue
				}
				taught++
				best, sum := 0, 0.0
				for i, x := range row {
					if x > row[best] {
						best = i
					}
					sum += math.Exp(float64(x) / a.Temperature)
				}
				if int32(best) != targets[lo+r] {
					t.Errorf("%v: position %d teaches id %d, next is %d", pair, lo+r, best, targets[lo+r])
				}
				if sum > 1+1e-5 || sum < .5 {
					t.Errorf("%v: position %d has the mass %g", pair, lo+r, sum)
				}
			}
		}
		if taught != counts.Taught {
			t.Errorf("%v: %d rows were written, %d teach", pair, taught, counts.Taught)
		}
		a.End(s)
		batch.Free(a.Device)
		a.Free()
		if o.begun != 1 || o.closed != 1 {
			t.Errorf("the body ran %d times and ended %d times", o.begun, o.closed)
		}
		cases += taught
	}
	contracttest.Cases(t, cases)
}

// kept returns the targets that count.
func kept(b corpus.Batch) (all []int32) {
	for i, m := range b.Mask {
		if m != 0 {
			all = append(all, b.Targets[i])
		}
	}
	return all
}

// nextOf returns what follows the teacher's kept positions in its own ids, by the alignment of each row.
func nextOf(t *testing.T, a *teacher.Aligned, b corpus.Batch) (next []int32) {
	t.Helper()
	al, ids := a.Pair.NewAligner(), []int32(nil)
	for i := range b.Rows {
		one := b.Slice(i, i+1)
		row, _, err := teacher.AlignRow(al, one, &ids, false, a.Most)
		if err != nil {
			t.Fatal(err)
		}
		for p, from := range row.From {
			if from >= 0 && one.Mask[p] != 0 {
				next = append(next, row.IDs[from+1])
			}
		}
	}
	return next
}

// A batch of which nothing teaches leaves the body alone.
func TestAlignedNothing(t *testing.T) {
	a, o, s := aligned(t, "gosrc", "gpt-2")
	b := rowsOf(t, a.Pair, 8, "a")
	clear(b.Mask)
	if err := a.Align(b); err != nil {
		t.Fatal(err)
	}
	batch := model.NewBatch(a.Device, 1, 8)
	batch.Load(s, b, 1)
	a.Begin(s, batch)
	a.End(s)
	if o.begun != 0 || o.closed != 0 {
		t.Error("the body ran")
	}
}

// A matrix of other vocabularies and models of too few rows are refused.
func TestCheckAligned(t *testing.T) {
	a, _, _ := aligned(t, "gosrc", "gpt-2")
	big, small := a.Pair.W.TeacherIDs, a.Pair.W.StudentIDs
	spec := device.LossSpec{Alpha: .5, Temperature: 1}
	if err := teacher.CheckAligned(a.Pair, "big", "small", big+3, small, spec); err != nil {
		t.Error(err)
	}
	for _, c := range [][2]int{{big - 1, small}, {big, small - 1}} {
		err := teacher.CheckAligned(a.Pair, "big", "small", c[0], c[1], spec)
		if fault.KindOf(err) != fault.Load || !strings.Contains(err.Error(), "fewer than its tokenizer's") {
			t.Errorf("%v rows give %v", c, err)
		}
	}
	other, _, _ := aligned(t, "gosrc", "gemma")
	wrong := *a.Pair
	wrong.W = other.Pair.W
	if err := teacher.CheckAligned(&wrong, "big", "small", big, small, spec); fault.KindOf(err) != fault.Invalid {
		t.Errorf("W of other vocabularies gives %v", err)
	}
}
