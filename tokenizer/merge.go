package tokenizer

// merges holds the merge rules: pair (left, right) of ids → rank, and rank → id of the result.
type merges struct {
	rank   map[uint64]uint32
	pairs  [][2]int32
	result []int32
}

// noMerge is the rank of a pair that has no rule; every real rank is smaller.
const noMerge = ^uint32(0)

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// of returns the rank of the pair, or noMerge.
func (m *merges) of(left, right int32) uint32 {
	if r, ok := m.rank[pairKey(left, right)]; ok {
		return r
	}
	return noMerge
}

// longWord is the length in bytes from which a heap finds the next merge faster than a scan over all pairs.
const longWord = 128

// merger applies the rules to one pre-token at a time. Both ways do the same: while some adjacent pair has a rule, merge
// the pair of the lowest rank, the leftmost of these first.
type merger struct {
	rules *merges
	short struct {
		ids   [longWord]int32
		ranks [longWord]uint32 // ranks[i] is that of the pair (i, i+1)
	}
	long longMerger
	work int // pairs looked at and heap entries moved: the tests bound it
}

// merge appends the ids of the pre-token word; byteID holds the ids of the 256 bytes.
func (m *merger) merge(dst []int32, word string, byteID *[256]int32) []int32 {
	ids := m.symbols(len(word))
	for i := range ids {
		ids[i] = byteID[word[i]]
	}
	return m.run(dst, ids)
}

// symbols returns room for the n symbols of a pre-token, for run.
func (m *merger) symbols(n int) []int32 {
	if n > longWord {
		return m.long.symbols(n)
	}
	return m.short.ids[:n]
}

// run appends what the rules make of the symbols in ids, which is what symbols returned.
func (m *merger) run(dst, ids []int32) []int32 {
	n := len(ids)
	if n > longWord {
		return m.long.run(dst, m)
	}
	ranks := m.short.ranks[:n]
	for i := 0; i+1 < n; i++ {
		ranks[i] = m.rules.of(ids[i], ids[i+1])
	}
	for n > 1 {
		m.work += n
		best, at := noMerge, 0
		for i, r := range ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == noMerge {
			break
		}
		ids[at] = m.rules.result[best]
		copy(ids[at+1:n], ids[at+2:n])
		copy(ranks[at+1:n], ranks[at+2:n])
		n--
		if at > 0 {
			ranks[at-1] = m.rules.of(ids[at-1], ids[at])
		}
		if at+1 < n {
			ranks[at] = m.rules.of(ids[at], ids[at+1])
		}
	}
	return append(dst, ids[:n]...)
}

// longMerger merges a long pre-token in O(n log n): the symbols form a linked list, and a heap holds rank<<32 | position
// of every pair that has a rule, so that its least entry is the lowest rank, leftmost. Entries are not removed when
// their pair changes; an entry counts only if the pair at its position still has that rank.
type longMerger struct {
	ids        []int32
	prev, next []int32
	ranks      []uint32
	heap       []uint64
}

// symbols returns room for n symbols.
func (l *longMerger) symbols(n int) []int32 {
	if cap(l.ids) < n {
		l.ids, l.prev, l.next = make([]int32, n), make([]int32, n), make([]int32, n)
		l.ranks, l.heap = make([]uint32, n), make([]uint64, 0, n)
	}
	l.ids, l.prev, l.next, l.ranks, l.heap = l.ids[:n], l.prev[:n], l.next[:n], l.ranks[:n], l.heap[:0]
	return l.ids
}

// run appends what the rules make of the symbols.
func (l *longMerger) run(dst []int32, m *merger) []int32 {
	l.begin(m.rules)
	n := int32(len(l.ids))
	m.work += len(l.ids)
	for i := len(l.heap)/2 - 1; i >= 0; i-- {
		m.work += l.down(i)
	}
	for len(l.heap) > 0 {
		top := l.heap[0]
		l.heap[0] = l.heap[len(l.heap)-1]
		l.heap = l.heap[:len(l.heap)-1]
		m.work += l.down(0)
		at, rank := int32(uint32(top)), uint32(top>>32)
		if l.ranks[at] != rank {
			continue
		}
		gone := l.next[at]
		after := l.next[gone]
		l.ids[at] = m.rules.result[rank]
		l.next[at] = after
		l.ranks[gone], l.ranks[at] = noMerge, noMerge
		if after < n {
			l.prev[after] = at
			m.work += l.pair(at, after, m.rules)
		}
		if before := l.prev[at]; before >= 0 {
			m.work += l.pair(before, at, m.rules)
		}
	}
	for i := int32(0); i < n; i = l.next[i] {
		dst = append(dst, l.ids[i])
	}
	if cap(l.ids) > 1<<16 { // one huge pre-token must not hold its memory for ever
		*l = longMerger{}
	}
	return dst
}

// begin links the symbols and fills the heap, unordered, with their pairs.
func (l *longMerger) begin(rules *merges) {
	n := len(l.ids)
	for i := range n {
		l.prev[i], l.next[i] = int32(i-1), int32(i+1)
	}
	for i := range n {
		l.ranks[i] = noMerge
		if i+1 < n {
			if r := rules.of(l.ids[i], l.ids[i+1]); r != noMerge {
				l.ranks[i] = r
				l.heap = append(l.heap, uint64(r)<<32|uint64(i))
			}
		}
	}
}

// pair records the rank of the neighbours (left, right) and pushes it if there is one. It returns the work done.
func (l *longMerger) pair(left, right int32, rules *merges) int {
	r := rules.of(l.ids[left], l.ids[right])
	l.ranks[left] = r
	if r == noMerge {
		return 1
	}
	l.heap = append(l.heap, uint64(r)<<32|uint64(left))
	work := 1
	for i := len(l.heap) - 1; i > 0; work++ {
		up := (i - 1) / 2
		if l.heap[up] <= l.heap[i] {
			break
		}
		l.heap[up], l.heap[i] = l.heap[i], l.heap[up]
		i = up
	}
	return work
}

// down restores the heap below i and returns the work done.
func (l *longMerger) down(i int) int {
	for work := 1; ; work++ {
		kid := 2*i + 1
		if kid >= len(l.heap) {
			return work
		}
		if kid+1 < len(l.heap) && l.heap[kid+1] < l.heap[kid] {
			kid++
		}
		if l.heap[i] <= l.heap[kid] {
			return work
		}
		l.heap[i], l.heap[kid] = l.heap[kid], l.heap[i]
		i = kid
	}
}
