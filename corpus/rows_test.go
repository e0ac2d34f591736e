package corpus

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// tokensOf makes Tokens of documents given by their ids; masks, if given, are theirs.
func tokensOf(docs [][]int32, masks [][]uint8) *Tokens {
	t := &Tokens{EOS: eos}
	for i, ids := range docs {
		e := encoded{ids: ids, bytes: int64(len(ids)), hash: Hash{byte(i >> 8), byte(i)}}
		if masks != nil {
			e.mask = masks[i]
		}
		t.add(&e)
	}
	return t
}

// anyDocs draws documents whose ids are all different, so that a row shows where it comes from.
func anyDocs(t *rapid.T) (docs [][]int32, masks [][]uint8) {
	next := int32(1000)
	masked := rapid.Bool().Draw(t, "masked")
	for _, n := range rapid.SliceOfN(rapid.IntRange(0, 40), 1, 12).Draw(t, "lengths") {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = next
			next++
		}
		docs = append(docs, ids)
		var mask []uint8
		if masked && rapid.Bool().Draw(t, "chat") {
			mask = make([]uint8, n)
			for i := range mask {
				mask[i] = uint8(rapid.IntRange(0, 1).Draw(t, "m"))
			}
		}
		masks = append(masks, mask)
	}
	return docs, masks
}

// expected returns the concatenation and its mask, by the definition.
func expected(docs [][]int32, masks [][]uint8) (ids []int32, mask []uint8) {
	for d, doc := range docs {
		for i, id := range doc {
			ids = append(ids, id)
			m := uint8(1)
			if masks[d] != nil {
				m = masks[d][i]
			}
			mask = append(mask, m)
		}
		ids = append(ids, eos)
		m := uint8(1)
		if masks[d] != nil {
			m = 0
		}
		mask = append(mask, m)
	}
	return ids, mask
}

// TestPackProperties: every id of every document stands in exactly one place of one row, but for a tail shorter than a
// row, and mask i belongs to target i.
func TestPackProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		docs, masks := anyDocs(t)
		s := rapid.IntRange(1, 20).Draw(t, "S")
		ids, mask := expected(docs, masks)
		rows, err := Pack(tokensOf(docs, masks), s)
		n := len(ids) / (s + 1)
		if n == 0 {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatalf("%d ids, rows of %d: %v", len(ids), s+1, err)
			}
			return
		}
		if err != nil && !strings.Contains(err.Error(), "has a target") {
			t.Fatal(err)
		}
		if rows.Len() != n || rows.Dropped != int64(len(ids)-n*(s+1)) {
			t.Fatalf("%d rows, %d dropped of %d ids, S %d", rows.Len(), rows.Dropped, len(ids), s)
		}
		without := 0
		for i := range n {
			in, tg, m := make([]int32, s), make([]int32, s), make([]uint8, s)
			rows.Fill(i, in, tg, m)
			at := i * (s + 1)
			if !slices.Equal(in, ids[at:at+s]) || !slices.Equal(tg, ids[at+1:at+s+1]) || !slices.Equal(m, mask[at+1:at+s+1]) {
				t.Fatalf("row %d: %v → %v mask %v", i, in, tg, m)
			}
			if !slices.Contains(m, 1) {
				without++
			}
		}
		if without != rows.NoTargets || (err != nil) != (without == n) {
			t.Fatalf("%d rows without target, counted %d, error %v", without, rows.NoTargets, err)
		}
	})
}

// TestOnePerRowProperties: row d is document d with its end, cut or padded, padding masked.
func TestOnePerRowProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		docs, masks := anyDocs(t)
		s := rapid.IntRange(1, 50).Draw(t, "S")
		rows, err := OnePerRow(tokensOf(docs, masks), s)
		if err != nil && !strings.Contains(err.Error(), "has a target") {
			t.Fatal(err)
		}
		if rows.Len() != len(docs) {
			t.Fatalf("%d rows of %d documents", rows.Len(), len(docs))
		}
		var dropped int64
		cut := 0
		for d := range docs {
			ids, mask := expected(docs[d:d+1], masks[d:d+1])
			if over := len(ids) - (s + 1); over > 0 {
				dropped += int64(over)
				cut++
			}
			for len(ids) < s+1 {
				ids, mask = append(ids, eos), append(mask, 0)
			}
			in, tg, m := make([]int32, s), make([]int32, s), slices.Repeat([]uint8{9}, s)
			rows.Fill(d, in, tg, m)
			if !slices.Equal(in, ids[:s]) || !slices.Equal(tg, ids[1:s+1]) || !slices.Equal(m, mask[1:s+1]) {
				t.Fatalf("row %d: %v → %v mask %v, want %v mask %v", d, in, tg, m, ids, mask)
			}
		}
		if rows.Dropped != dropped || rows.Truncated != cut {
			t.Fatalf("dropped %d truncated %d, want %d and %d", rows.Dropped, rows.Truncated, dropped, cut)
		}
	})
}

func TestRowsRefused(t *testing.T) {
	some := func() *Tokens { return tokensOf([][]int32{{1, 2, 3}}, nil) }
	masked := func() *Tokens { return tokensOf([][]int32{{1, 2, 3}}, [][]uint8{{1, 0, 0}}) }
	for _, c := range []struct {
		name string
		make func() (*Rows, error)
		want string
		kind fault.Kind
	}{
		{"short", func() (*Rows, error) { return Pack(some(), 4) }, "the data holds 4 tokens, fewer than the 5 of one row [E-CORPUS-010]", fault.Invalid},
		{"length 0", func() (*Rows, error) { return Pack(some(), 0) }, "sequence length 0 is not a positive 31-bit number [E-CORPUS-012]", fault.Usage},
		{"masked", func() (*Rows, error) { return Pack(masked(), 3) }, "none of the 1 rows has a target [E-CORPUS-013]", fault.Invalid},
		{"masked alone", func() (*Rows, error) { return OnePerRow(masked(), 8) }, "none of the 1 rows has a target [E-CORPUS-013]", fault.Invalid},
		{"nothing", func() (*Rows, error) { return OnePerRow(&Tokens{}, 8) }, "the data holds no document [E-CORPUS-011]", fault.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.make()
			wantError(t, err, "", c.want, c.kind)
		})
	}
}

// count makes packed rows of one document of n ids 0…n−1, the last being end-of-text.
func countRows(t testing.TB, rows, s int) *Rows {
	ids := make([]int32, rows*(s+1)-1)
	for i := range ids {
		ids[i] = int32(i)
	}
	r, err := Pack(tokensOf([][]int32{ids}, nil), s)
	must(t, err)
	return r
}

// TestLoaderProperties: each epoch serves every row once; a loader that seeks goes on bit for bit.
func TestLoaderProperties(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		n := rapid.IntRange(1, 30).Draw(t, "rows")
		opt := LoaderOptions{
			BatchRows: rapid.IntRange(1, 40).Draw(t, "batch"),
			Shuffle:   rapid.Bool().Draw(t, "shuffle"),
			Seed:      rapid.Uint64().Draw(t, "seed"),
		}
		ids := make([]int32, 3*n)
		for i := range ids {
			ids[i] = int32(i)
		}
		rows, err := Pack(&Tokens{IDs: ids}, 2)
		if err != nil {
			t.Fatal(err)
		}
		l, err := NewLoader(rows, opt)
		if err != nil {
			t.Fatal(err)
		}
		var served []int
		var batches []Batch
		var positions []Position
		steps := int(l.Steps(3))
		if steps*opt.BatchRows < 3*n || (steps-1)*opt.BatchRows >= 3*n {
			t.Fatalf("%d steps of %d rows for 3 epochs of %d", steps, opt.BatchRows, n)
		}
		for range steps {
			positions = append(positions, l.Position())
			b, err := l.Next()
			if err != nil {
				t.Fatal(err)
			}
			batches = append(batches, b)
			for i := range b.Rows {
				served = append(served, int(b.Tokens[i*2])/3)
			}
		}
		for e := range 3 {
			if opt.Shuffle {
				for i, r := range permutation(nil, n, opt.Seed, uint64(e)) {
					if served[e*n+i] != int(r) {
						t.Fatalf("epoch %d has not its own order", e)
					}
				}
			}
			epoch := slices.Sorted(slices.Values(served[e*n : (e+1)*n]))
			for i, r := range epoch {
				if r != i {
					t.Fatalf("epoch %d serves %v", e, epoch)
				}
			}
			if !opt.Shuffle && !slices.IsSorted(served[e*n:(e+1)*n]) {
				t.Fatalf("epoch %d is not in data order", e)
			}
			contracttest.Cases(outer, 1)
		}
		k := rapid.IntRange(0, steps-1).Draw(t, "resume")
		again, _ := NewLoader(rows, opt)
		text, _ := json.Marshal(positions[k])
		var p Position
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		if err := again.Seek(p); err != nil {
			t.Fatal(err)
		}
		for ; k < steps; k++ {
			b, _ := again.Next()
			if fmt.Sprint(b) != fmt.Sprint(batches[k]) {
				t.Fatalf("step %d differs after resuming", k)
			}
		}
	})
}

// TestOrder pins the order, which must never change: it decides what a resumed run sees.
func TestOrder(t *testing.T) {
	for _, c := range []struct {
		seed, epoch uint64
		want        string
	}{
		{42, 0, "[8 4 3 2 7 5 6 9 0 1 11 10]"},
		{42, 1, "[4 3 1 8 11 10 0 7 9 5 6 2]"},
		{43, 0, "[11 0 8 6 3 9 5 10 7 4 1 2]"},
	} {
		if got := fmt.Sprint(permutation(nil, 12, c.seed, c.epoch)); got != c.want {
			t.Errorf("seed %d epoch %d: %s, want %s", c.seed, c.epoch, got, c.want)
		}
	}
}

// TestOrderIsFair counts where each of 6 rows lands over 60,000 epochs: the chi-square of the 36 counts has 25 degrees
// of freedom, and exceeds 60 by chance once in 10,000 seeds; the control, which shuffles badly, must exceed it.
func TestOrderIsFair(t *testing.T) {
	const n, epochs = 6, 60_000
	chi := func(order func(epoch uint64) []uint32) float64 {
		var count [n][n]float64
		for e := range uint64(epochs) {
			for i, r := range order(e) {
				count[i][r]++
			}
		}
		sum := 0.0
		for i := range n {
			for j := range n {
				d := count[i][j] - epochs/n
				sum += d * d / (epochs / n)
			}
		}
		return sum
	}
	if x := chi(func(e uint64) []uint32 { return permutation(nil, n, 42, e) }); !(x < 60) {
		t.Errorf("chi-square %g", x)
	}
	if x := chi(func(e uint64) []uint32 {
		p := permutation(nil, n, 42, e)
		if e%20 == 0 {
			slices.Sort(p)
		}
		return p
	}); !(x > 60) {
		t.Errorf("a bad order passes: chi-square %g", x)
	}
}

func TestLoaderRefused(t *testing.T) {
	rows := countRows(t, 4, 3)
	_, err := NewLoader(rows, LoaderOptions{})
	wantError(t, err, "", "a batch of 0 rows [E-CORPUS-020]", fault.Usage)
	l, err := NewLoader(rows, LoaderOptions{BatchRows: 2})
	must(t, err)
	for _, p := range []Position{{-1, 0}, {0, -1}, {0, 4}} {
		err := l.Seek(p)
		wantError(t, err, "", fmt.Sprintf("position epoch %d, row %d is outside the data's 4 rows [E-CORPUS-022]", p.Epoch, p.Row), fault.Invalid)
	}
	some, err := OnePerRow(tokensOf([][]int32{{1, 2}, {}, {}}, nil), 4)
	must(t, err)
	if some.NoTargets != 2 {
		t.Errorf("%d rows without targets, want 2", some.NoTargets)
	}
	l, err = NewLoader(some, LoaderOptions{BatchRows: 1})
	must(t, err)
	_, err = l.Next()
	must(t, err)
	_, err = l.Next()
	wantError(t, err, "", "the batch at epoch 0, row 1 has no target [E-CORPUS-023]", fault.Invalid)
}

func TestMicro(t *testing.T) {
	l, err := NewLoader(countRows(t, 10, 3), LoaderOptions{BatchRows: 7})
	must(t, err)
	b, err := l.Next()
	must(t, err)
	for _, rows := range []int{1, 2, 3, 7, 9} {
		n, total := 0, 0
		for _, m := range b.Micro(rows) {
			if m.Rows > rows || len(m.Tokens) != m.Rows*m.SeqLen || &m.Targets[0] != &b.Targets[n*b.SeqLen] {
				t.Errorf("micro-batch of %d rows is not a view at row %d", m.Rows, n)
			}
			n += m.Rows
			total += m.TargetCount()
		}
		if n != b.Rows || total != b.TargetCount() || total != 21 {
			t.Errorf("split by %d: %d rows, %d targets of %d", rows, n, total, b.TargetCount())
		}
	}
}

// TestWindowsProperties: every target is scored exactly once, up to the tail that fills no window.
func TestWindowsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 200).Draw(t, "ids")
		s := rapid.IntRange(1, n-1).Draw(t, "S")
		stride := rapid.IntRange(1, s).Draw(t, "stride")
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(i)
		}
		w, err := NewWindows(&Tokens{IDs: ids}, s, stride)
		if err != nil {
			t.Fatal(err)
		}
		scored := make([]int, n)
		for lo := 0; lo < w.Len(); lo += 3 {
			b := w.Batch(lo, min(lo+3, w.Len()))
			for i, m := range b.Mask {
				if b.Targets[i] != b.Tokens[i]+1 || int(b.Tokens[i]) != (lo+i/s)*stride+i%s {
					t.Fatalf("window %d position %d holds %d → %d", lo+i/s, i%s, b.Tokens[i], b.Targets[i])
				}
				scored[b.Targets[i]] += int(m)
			}
		}
		end := (w.Len()-1)*stride + s
		for i, k := range scored {
			want := 0
			if i > 0 && i <= end {
				want = 1
			}
			if k != want {
				t.Fatalf("target %d of %d scored %d times; S %d, stride %d", i, n, k, s, stride)
			}
		}
		if n-1-end >= stride {
			t.Fatalf("one more window fits: %d ids, S %d, stride %d, %d windows", n, s, stride, w.Len())
		}
	})
}

// RowsFrom names the rows that Next serves, over the end of an epoch too, and leaves the loader where it is.
func TestRowsFrom(t *testing.T) {
	tokens := &Tokens{}
	for i := range int32(8 * 9) {
		tokens.IDs = append(tokens.IDs, i)
	}
	rows, err := Pack(tokens, 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, shuffle := range []bool{false, true} {
		l, err := NewLoader(rows, LoaderOptions{BatchRows: 3, Shuffle: shuffle, Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		var before Position
		for k := range 9 {
			p := l.Position()
			b, err := l.Next()
			if err != nil {
				t.Fatal(err)
			}
			for _, from := range []Position{p, before} { // and of one that is past
				l.RowsFrom(from)
			}
			for i, row := range l.RowsFrom(p) {
				if want := b.Tokens[i*8] / 9; int32(row) != want {
					t.Errorf("shuffle %v, batch %d: row %d is %d, want %d", shuffle, k, i, row, want)
				}
			}
			before = p
		}
	}
}

// Where documents begin is counted in rows and windows; what began before a row begins at its first position.
func TestStarts(t *testing.T) {
	tok := &Tokens{IDs: make([]int32, 20), EOS: 0, Docs: []Doc{{End: 3}, {End: 4}, {End: 9}, {End: 20}}}
	for i := range tok.IDs {
		tok.IDs[i] = int32(i)
	}
	rows, err := Pack(tok, 4)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(rows, LoaderOptions{BatchRows: 4, Documents: true})
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Next()
	if err != nil {
		t.Fatal(err)
	}
	// rows begin at ids 0, 5, 10 and 15
	if want := []int32{0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; !slices.Equal(b.Starts, want) {
		t.Errorf("rows: %v, want %v", b.Starts, want)
	}
	if got := b.Slice(0, 1).Starts; !slices.Equal(got, b.Starts[:4]) {
		t.Errorf("slice: %v", got)
	}
	w, err := NewWindows(tok, 7, 5)
	if err != nil {
		t.Fatal(err)
	}
	w.Documents = true
	// windows begin at ids 0, 5 and 10
	if got, want := w.Batch(0, 3).Starts, []int32{0, 0, 0, 3, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("windows: %v, want %v", got, want)
	}
	one, err := OnePerRow(tok, 4)
	if err != nil {
		t.Fatal(err)
	}
	starts := []int32{7, 7, 7, 7}
	if one.FillStarts(2, starts); !slices.Equal(starts, make([]int32, 4)) {
		t.Errorf("a document a row: %v", starts)
	}
	plain, err := NewLoader(rows, LoaderOptions{BatchRows: 4})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := plain.Next(); err != nil || b.Starts != nil {
		t.Errorf("not asked for: %v, %v", b.Starts, err)
	}
}
