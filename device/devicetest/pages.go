package devicetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
	"apr/tensor"
)

// pageCases are those of device.Pager. A device whose streams are none says so in its Lacks, and the cases ask no more
// of it.
func pageCases() []Case {
	var all []Case
	for i, d := range []int{16, 20, 64, 80, 128, 256, 512} {
		for j, h := range [][2]int{{1, 1}, {4, 2}, {6, 1}} {
			a := device.Paged{Heads: h[0], KVHeads: h[1], HeadDim: d}
			if (i+j)%2 == 1 {
				a.Cap, a.Scale = 1.5, .7/math.Sqrt(float64(d))
			}
			sink := []float64{0, .5, 0, 40}[(i+2*j)%4]
			all = append(all, both(fmt.Sprintf("pages/heads %d:%d of %d, cap %g, sinks of %g", h[0], h[1], d, a.Cap, sink),
				func(l *lab) { checkPages(l, a, sink, []int{9, 1, 0, 4, 3, 7}) })...)
		}
	}
	long := device.Paged{Heads: 2, KVHeads: 1, HeadDim: 16}
	odd := device.Paged{Heads: 1, KVHeads: 1, HeadDim: 20, Cap: 2}
	wide := device.Paged{Heads: 2, KVHeads: 1, HeadDim: 128, Cap: 3}
	many := device.Paged{Heads: 18, KVHeads: 2, HeadDim: 64}
	all = append(all, both("pages/keys of several blocks, wide heads",
		func(l *lab) { checkPages(l, wide, 1, []int{797, 31, 160, 340}) })...)
	all = append(all, both("pages/nine queries of a key",
		func(l *lab) { checkPages(l, many, 0, []int{37, 5}) })...)
	all = append(all, both("pages/keys of several blocks",
		func(l *lab) { checkPages(l, long, 1, []int{769, 2000, 5, 768}) })...)
	all = append(all, both("pages/keys of several blocks, odd heads",
		func(l *lab) { checkPages(l, odd, 0, []int{1600, 3}) })...)
	for _, d := range []int{8, 64} {
		all = append(all, Case{
			Name:  fmt.Sprintf("pages/a row alone has the bits that it has among others, heads of %d", d),
			check: func(l *lab) { checkPagesAlone(l, d) },
		}, Case{
			Name:  fmt.Sprintf("pages/keys that are not there, heads of %d", d),
			check: func(l *lab) { checkPagesOutside(l, d) },
		})
	}
	return append(all, Case{Name: "pages/rows that are put", check: checkPutRows})
}

// pager returns the stream as one, nil if the device says that it is none.
func (l *lab) pager() device.Pager {
	p, ok := l.s.(device.Pager)
	if lacks := slices.Contains(l.dev.Info().Lacks, device.Pages); ok == lacks {
		l.errorf("a stream is a Pager: %v, and its device lacks it: %v", ok, lacks)
		return nil
	}
	return p
}

// pageSize is how many rows a page of these cases has: few, so that short rows have several.
const pageSize = 4

// paged are sequences in pages: where the rows of each begin in the table, and what the table lists.
type paged struct {
	table, first []int
	pool         int // rows of all pages
}

// pages deals pages to sequences of so many keys, in no order. Every second one is the ring of a window that has
// turned: its keys begin in the last third of its pages and go on with the first, for which its table lists all rows
// twice. A page is nobody's.
func (l *lab) pages(keys []int) (p paged) {
	all := 1
	for _, n := range keys {
		all += (n + pageSize - 1) / pageSize
	}
	free := l.rng.Perm(all)
	p.pool = all * pageSize
	for i, n := range keys {
		begin, count := len(p.table), (n+pageSize-1)/pageSize
		turns, skip := 1, 0
		if i%2 == 1 {
			turns, skip = 2, 2*count*pageSize/3
		}
		for range turns {
			for _, page := range free[:count] {
				for r := range pageSize {
					p.table = append(p.table, page*pageSize+r)
				}
			}
		}
		p.first, free = append(p.first, begin+skip), free[count:]
	}
	p.table = append(p.table, 0) // so that first is below its length for a last row without keys, too
	return p
}

// checkPages compares with float64. Nobody's rows hold NaN.
func checkPages(l *lab, a device.Paged, sink float64, keys []int) {
	s := l.pager()
	if s == nil {
		return
	}
	p := l.pages(keys)
	n, width := len(keys), a.KVHeads*a.HeadDim
	q, kv := l.random(n, a.Heads*a.HeadDim, 1), l.random(p.pool, 2*width, 1)
	seen := map[int]bool{}
	for i, k := range keys {
		for _, r := range p.table[p.first[i] : p.first[i]+k] {
			seen[r] = true
		}
	}
	for r := range p.pool {
		for c := 0; !seen[r] && c < kv.Cols; c++ {
			kv.Row(r)[c] = math.NaN()
		}
	}
	var sinks []float64
	if sink > 0 {
		m := l.random(1, a.Heads, sink)
		a.Sinks, sinks = l.in(tensor.F32, m), m.V
	}
	qt, kvt, o := l.in(l.act, q), l.in(l.act, kv), l.out(l.act, n, q.Cols)
	a.Table, a.First, a.Keys, a.Most = l.ids(p.table), l.ids(p.first), l.ids(keys), slices.Max(keys)
	s.AttendPages(o, qt, kvt.ColRange(0, width), kvt.ColRange(width, 2*width), a)
	want := ref.AttendPages(q, kv.ColRange(0, width), kv.ColRange(width, 2*width), p.table, p.first, keys, a, sinks)
	loose := 1 + 4*max(1, a.Attn(1, 1).ScoreScale()*math.Sqrt(float64(a.HeadDim)))
	l.compareScaled("o", o, want, l.tol("attention", l.act, a.Most)+
		loose*(tol("attention", tensor.F32, a.HeadDim)+l.rounding("scores", l.act)))
}

// checkPagesAlone: a row's bits are the same alone, with other places in pages, and beside a row of many keys.
func checkPagesAlone(l *lab, d int) {
	s := l.pager()
	if s == nil {
		return
	}
	a := device.Paged{Heads: 2, KVHeads: 1, HeadDim: d}
	own := []int{13, 900, 5}
	keys := append(slices.Clone(own), 2500)
	q := l.random(len(keys), a.Heads*a.HeadDim, 1)
	var values []ref.Mat
	for _, n := range keys {
		values = append(values, l.random(n, 2*a.HeadDim, 1))
	}
	run := func(of []int) (rows [][]byte) {
		var counts []int
		for _, i := range of {
			counts = append(counts, keys[i])
		}
		p := l.pages(counts)
		kv, some := ref.New(p.pool, 2*a.HeadDim), ref.New(len(of), q.Cols)
		for r, i := range of {
			copy(some.Row(r), q.Row(i))
			for j, row := range p.table[p.first[r]:][:keys[i]] {
				copy(kv.Row(row), values[i].Row(j))
			}
		}
		b, kvt, o := a, l.in(l.act, kv), l.out(l.act, len(of), q.Cols)
		b.Table, b.First, b.Keys, b.Most = l.ids(p.table), l.ids(p.first), l.ids(counts), slices.Max(counts)
		s.AttendPages(o, l.in(l.act, some), kvt.ColRange(0, a.HeadDim), kvt.ColRange(a.HeadDim, 2*a.HeadDim), b)
		got := l.get(o)
		for r := range of {
			var row []byte
			for _, v := range got.Row(r) {
				row = binary.LittleEndian.AppendUint64(row, math.Float64bits(v))
			}
			rows = append(rows, row)
		}
		return rows
	}
	together := run([]int{3, 0, 1, 2})
	for i := range own {
		if alone := run([]int{i})[0]; !bytes.Equal(alone, together[i+1]) {
			l.errorf("the row of %d keys has other bits beside others", own[i])
		}
	}
}

// checkPutRows: rows are where they were put, and no other changes.
func checkPutRows(l *lab) {
	s := l.pager()
	if s == nil {
		return
	}
	for _, cols := range []int{1, 8, 20, 64} {
		to, from := l.random(9, cols, 1), l.random(4, cols, 1)
		dst, src, rows := l.inout(l.act, to), l.in(l.act, from), []int{7, 0, 8, 3}
		s.PutRows(dst, src, l.ids(rows))
		for i, r := range rows {
			copy(to.Row(r), from.Row(i))
		}
		l.compare("rows that are put", "move", dst, to, 0)
	}
}

// checkPagesOutside: a key, an entry or a number that is not there is an error of the stream.
func checkPagesOutside(l *lab, d int) {
	s := l.pager()
	if s == nil || l.dev.Info().Kind == "dry" {
		return
	}
	a := device.Paged{Heads: 1, KVHeads: 1, HeadDim: d, Most: 3}
	for _, c := range [][3][]int{
		{{0, 1, 6}, {0}, {3}}, {{0, -1, 2}, {0}, {3}}, {{0, 1, 2}, {1}, {3}}, {{0, 1, 2, 3, 4}, {0}, {4}},
		{{0, 1, 2}, {-1}, {2}},
	} {
		q, kv, o := l.in(l.act, l.random(1, d, 1)), l.in(l.act, l.random(6, d, 1)), l.out(l.act, 1, d)
		a.Table, a.First, a.Keys = l.ids(c[0]), l.ids(c[1]), l.ids(c[2])
		s.AttendPages(o, q, kv, kv, a)
		if _, err := l.s.Wait(context.Background()); fault.KindOf(err) != fault.Invalid {
			l.errorf("table %v, first %v, %v keys: %v", c[0], c[1], c[2], err)
		}
		for _, w := range l.watched { // with an error a device may give all temps back
			if w.whole.Buf.State() == device.Temporary {
				l.s.Release(w.whole)
			}
		}
		l.watched = nil
	}
}

// lookedUp are the operands of AttendPages.
type lookedUp struct {
	o, q, k, v device.Tensor
	a          device.Paged
}

func pageRefusals() []Refusal {
	rows := func(k *desk) moved { return moved{dst: k.acts(6, 4), src: k.acts(1, 4), rows: k.ids(1)} }
	all := refusals(device.OpPutRows, rows, func(s device.Stream, a moved) {
		if p, ok := s.(device.Pager); ok {
			p.PutRows(a.dst, a.src, a.rows)
			return
		}
		device.CheckPutRows(a.dst, a.src, a.rows) // a stream that has no such operation
	},
		wrong[moved]{"rows of another number", wrongShapes, func(k *desk, a *moved) { a.rows = k.ids(3) }},
		wrong[moved]{"rows of floats", noIDs, func(k *desk, a *moved) { a.rows = k.single(1, 1) }},
		wrong[moved]{"columns", wrongShapes, func(k *desk, a *moved) { a.src = k.acts(1, 5) }},
		wrong[moved]{"another type", wrongTypes, func(k *desk, a *moved) { a.src = k.others(1, 4) }},
		wrong[moved]{"given back", given, func(k *desk, a *moved) { a.src = k.gone(k.act, 1, 4) }},
	)
	operands := func(k *desk) lookedUp {
		return lookedUp{k.acts(3, 16), k.acts(3, 16), k.acts(5, 8), k.acts(5, 8), device.Paged{
			Heads: 2, KVHeads: 1, HeadDim: 8, Table: k.ids(9), First: k.ids(3), Keys: k.ids(3), Most: 2}}
	}
	return append(all, refusals(device.OpAttendPages, operands, func(s device.Stream, a lookedUp) {
		if p, ok := s.(device.Pager); ok {
			p.AttendPages(a.o, a.q, a.k, a.v, a.a)
			return
		}
		device.CheckAttendPages(a.o, a.q, a.k, a.v, a.a) // a stream that has no such operation
	},
		wrong[lookedUp]{"heads that do not divide", "heads do not divide", func(_ *desk, a *lookedUp) { a.a.KVHeads = 3 }},
		wrong[lookedUp]{"rows of o", wrongShapes, func(k *desk, a *lookedUp) { a.o = k.acts(2, 16) }},
		wrong[lookedUp]{"columns of q", wrongShapes, func(k *desk, a *lookedUp) { a.q = k.acts(3, 8) }},
		wrong[lookedUp]{"columns of k", wrongShapes, func(k *desk, a *lookedUp) { a.k = k.acts(5, 16) }},
		wrong[lookedUp]{"rows of v", wrongShapes, func(k *desk, a *lookedUp) { a.v = k.acts(6, 8) }},
		wrong[lookedUp]{"no rows of k and v", "a row sees no key", func(k *desk, a *lookedUp) {
			a.k, a.v = k.acts(0, 8), k.acts(0, 8)
		}},
		wrong[lookedUp]{"no keys", "a row sees no key", func(_ *desk, a *lookedUp) { a.a.Most = 0 }},
		wrong[lookedUp]{"v of another type", wrongTypes, func(k *desk, a *lookedUp) { a.v = k.others(5, 8) }},
		wrong[lookedUp]{"a table of floats", noIDs, func(k *desk, a *lookedUp) { a.a.Table = k.single(9, 1) }},
		wrong[lookedUp]{"no table", noTensor, func(_ *desk, a *lookedUp) { a.a.Table = device.Tensor{} }},
		wrong[lookedUp]{"first entries of another number", wrongShapes, func(k *desk, a *lookedUp) { a.a.First = k.ids(2) }},
		wrong[lookedUp]{"numbers of keys of floats", noIDs, func(k *desk, a *lookedUp) { a.a.Keys = k.single(3, 1) }},
		wrong[lookedUp]{"a negative soft-cap", noCap, func(_ *desk, a *lookedUp) { a.a.Cap = -1 }},
		wrong[lookedUp]{"sinks of fewer heads", noVector, func(k *desk, a *lookedUp) { a.a.Sinks = k.single(1, 1) }},
		wrong[lookedUp]{"sinks of another type", noFloat32, func(k *desk, a *lookedUp) { a.a.Sinks = k.narrow(1, 2) }},
		wrong[lookedUp]{"q given back", given, func(k *desk, a *lookedUp) { a.q = k.gone(k.act, 3, 16) }},
	)...)
}
