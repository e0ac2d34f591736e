package devicetest

import (
	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
)

var _ device.Pager = (*slowStream)(nil)

// pagesOp is ref.AttendPages.
type pagesOp = func(q, k, v ref.Mat, table, first, keys []int, a device.Paged, sinks []float64) ref.Mat

// PutRows is that of device.Pager.
func (s *slowStream) PutRows(dst, src, rows device.Tensor) {
	device.CheckPutRows(dst, src, rows)
	m, from := s.read(dst), s.read(src)
	if s.ops.putZero {
		clear(m.V)
	}
	for i, r := range s.ints(rows) {
		copy(m.Row(r), from.Row(i))
	}
	s.write(dst, m)
}

// AttendPages is that of device.Pager.
func (s *slowStream) AttendPages(o, q, k, v device.Tensor, a device.Paged) {
	device.CheckAttendPages(o, q, k, v, a)
	var sinks []float64
	if !a.Sinks.IsZero() {
		sinks = s.read(a.Sinks).V
	}
	table, first, keys := s.ints(a.Table), s.ints(a.First), s.ints(a.Keys)
	for r, n := range keys {
		there := n >= 0 && n <= a.Most && first[r] >= 0 && first[r]+n <= len(table)
		for j := 0; there && j < n; j++ {
			row := table[first[r]+j]
			there = row >= 0 && row < k.Rows
		}
		if !there {
			s.fail(fault.New(fault.Invalid, "keys that are not there"))
			return
		}
	}
	s.write(o, s.ops.pages(s.read(q), s.read(k), s.read(v), table, first, keys, a, sinks))
}

func init() {
	change := func(f pagesOp) func(*ops) { return func(o *ops) { o.pages = f } }
	type ints = []int
	counted := func(by func(n, r int) int) func(*ops) {
		return change(func(q, k, v ref.Mat, table, first, keys []int, a device.Paged, sinks []float64) ref.Mat {
			other := make(ints, len(keys))
			for r, n := range keys {
				other[r] = by(n, r)
			}
			return ref.AttendPages(q, k, v, table, first, other, a, sinks)
		})
	}
	begun := func(by func(table, first ints, r int) int) func(*ops) {
		return change(func(q, k, v ref.Mat, table, first, keys []int, a device.Paged, sinks []float64) ref.Mat {
			other := make(ints, len(first))
			for r := range first {
				other[r] = min(max(0, by(table, first, r)), len(table)-keys[r])
			}
			return ref.AttendPages(q, k, v, table, other, keys, a, sinks)
		})
	}
	// contiguous reads n rows from the first on, as if pages followed each other.
	contiguous := change(func(q, k, v ref.Mat, table, first, keys []int, a device.Paged, sinks []float64) ref.Mat {
		var all ints
		from := make(ints, len(first))
		for r, n := range keys {
			from[r] = len(all)
			for j := range n {
				all = append(all, (table[first[r]]+j)%k.Rows)
			}
		}
		return ref.AttendPages(q, k, v, all, from, keys, a, sinks)
	})
	// unturned takes the rows of a ring that has not turned: where its table lists a row again, the one before is read on.
	unturned := change(func(q, k, v ref.Mat, table, first, keys []int, a device.Paged, sinks []float64) ref.Mat {
		var all ints
		from := make(ints, len(first))
		for r, n := range keys {
			from[r] = len(all)
			last := -1
			for j, row := range table[first[r]:][:n] {
				if j > 0 && last%pageSize == pageSize-1 && seenBefore(table[:first[r]+j], row) {
					row = last
				}
				all, last = append(all, row), row
			}
		}
		return ref.AttendPages(q, k, v, all, from, keys, a, sinks)
	})
	mutants = append(mutants,
		mutant{"a key of pages left out", "pages/", counted(func(n, _ int) int { return max(n-1, min(n, 1)) })},
		mutant{"a key of pages too many", "pages/", counted(func(n, r int) int { return n + (r+1)%2 })},
		mutant{"the keys of the neighbour", "pages/", begun(func(_, first ints, r int) int {
			return first[(r+1)%len(first)]
		})},
		mutant{"one table for all rows", "pages/", begun(func(_, first ints, _ int) int { return first[0] })},
		mutant{"pages that follow each other", "pages/", contiguous},
		mutant{"a ring that is not turned", "pages/", unturned},
		mutant{"sinks forgotten over pages", "pages/", change(func(q, k, v ref.Mat, table, first,
			keys []int, a device.Paged, _ []float64) ref.Mat {
			return ref.AttendPages(q, k, v, table, first, keys, a, nil)
		})},
		mutant{"soft-cap forgotten over pages", "pages/", change(func(q, k, v ref.Mat, table, first,
			keys []int, a device.Paged, sinks []float64) ref.Mat {
			a.Cap = 0
			return ref.AttendPages(q, k, v, table, first, keys, a, sinks)
		})},
		mutant{"a row without keys stays as it was", "pages/", change(func(q, k, v ref.Mat, table, first,
			keys []int, a device.Paged, sinks []float64) ref.Mat {
			o := ref.AttendPages(q, k, v, table, first, keys, a, sinks)
			for r, n := range keys {
				if n == 0 {
					copy(o.Row(r), q.Row(r))
				}
			}
			return o
		})},
		mutant{"rows beside those that are put are lost", "pages/", func(o *ops) { o.putZero = true }},
		mutant{"a row's bits depend on the longest", "pages/a row alone", change(func(q, k, v ref.Mat,
			table, first, keys []int, a device.Paged, sinks []float64) ref.Mat {
			o := ref.AttendPages(q, k, v, table, first, keys, a, sinks)
			if a.Most > 1000 {
				for i := range o.V {
					o.V[i] *= 1 + 0x1p-20
				}
			}
			return o
		})},
	)
}

// seenBefore reports whether a table lists a row.
func seenBefore(table []int, row int) bool {
	for _, r := range table {
		if r == row {
			return true
		}
	}
	return false
}
