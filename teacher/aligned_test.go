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
	t      *testing.T
	device device.Device
	ids    int
	begun  int
	next   []int32 // of the kept positions
	closed int
}

// Begin reads the ids that follow the kept positions, by a table in which each id and each position has its number.
func (o *oracle) Begin(s device.Stream, b *model.Batch) {
	o.begun++
	n := max(o.ids, b.Tokens.Rows*b.Tokens.SeqLen)
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i)
	}
	table := s.Temp("table", device.Activations, tensor.F32, n, 1)
	s.Upload(table, numbers)
	read := func(ids device.Tensor) []float32 {
		x := s.Temp("numbers", device.Activations, tensor.F32, ids.Rows, 1)
		defer s.Release(x)
		s.Embed(x, o.device.Frozen(table), ids)
		v := make([]float32, ids.Rows)
		if err := s.Download(v, x); err != nil {
			o.t.Fatal(err)
		}
		return v
	}
	tokens, o2 := read(b.Tokens.IDs), o.next[:0]
	for _, at := range read(b.Keep) {
		o2 = append(o2, int32(tokens[int(at)+1]))
	}
	o.next = o2
	s.Release(table)
}

func (o *oracle) End(device.Stream) { o.closed++ }

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
	o := &oracle{t: t, device: d, ids: p.W.TeacherIDs}
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

// With Text every row has a distribution: the text's next id has all of it where the teacher does not teach.
func TestAlignedText(t *testing.T) {
	a, _, s := aligned(t, "gosrc", "gemma")
	a.Text = true
	b := rowsOf(t, a.Pair, 48, "func main() { fmt.Println(\"hello\") }\n", "x := 12345")
	if err := a.Align(b); err != nil {
		t.Fatal(err)
	}
	batch := model.NewBatch(a.Device, b.Rows, b.SeqLen)
	batch.Load(s, b, b.Rows)
	a.Begin(s, batch)
	v, certain, targets := a.Pair.W.StudentIDs, 0, kept(b)
	wide := s.Temp("dst", device.Logits, tensor.F32, batch.N, v+3)
	dst := wide.ColRange(0, v)
	a.Logits(s, 0, batch.N, dst)
	got := make([]float32, batch.N*v)
	if err := s.Download(got, dst); err != nil {
		t.Fatal(err)
	}
	for r, want := range targets {
		row, best, sum := got[r*v:(r+1)*v], 0, 0.0
		for i, x := range row {
			if x > row[best] {
				best = i
			}
		}
		for _, x := range row {
			sum += math.Exp(float64(x-row[best]) / a.Temperature)
		}
		if int32(best) != want {
			t.Errorf("row %d gives id %d, the text %d", r, best, want)
		}
		contracttest.Cases(t, 1)
		if sum < 1+1e-9 {
			certain++
		}
	}
	if c := a.Counts(); certain < c.Targets-c.Taught {
		t.Errorf("%d rows are the text's, %+v", certain, c)
	}
	a.End(s)
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
