package strictjson

import (
	"fmt"
	"hash/maphash"
	"slices"
)

// largeObject is the number of members from which an object is indexed instead of searched.
const largeObject = 16

var seed = maphash.MakeSeed() // unpredictable, so that no file can be built to collide

// unique looks for repeated keys in the object at tape position at, and indexes it if it is large.
func (p *parser) unique(at, members int) error {
	if members < 2 {
		return nil
	}
	if members < largeObject {
		return p.repeats(p.smallRepeats(at))
	}
	entries := make([]uint64, 0, members)
	for k := at + 1; k < len(p.tape); k = int(p.tape[k+1].next) {
		entries = append(entries, p.hashAt(p.tape[k].off)<<32|uint64(k))
	}
	slices.Sort(entries)
	var again [][2]int // key, earlier key of the same name
	live := entries[:0]
	for i := 0; i < len(entries); {
		j := i + 1
		for j < len(entries) && entries[j]>>32 == entries[i]>>32 {
			j++
		}
		run := entries[i:j]
		again = append(again, p.runRepeats(run)...)
		live = append(live, run...)
		i = j
	}
	if err := p.repeats(again); err != nil {
		return err
	}
	live = slices.DeleteFunc(live, func(e uint64) bool { return p.tape[uint32(e)].next != 0 })
	if p.index == nil {
		p.index = map[uint32][]uint64{}
	}
	p.index[uint32(at)] = live
	return nil
}

// smallRepeats compares all keys of an object that was just read.
func (p *parser) smallRepeats(at int) (again [][2]int) {
	for k := at + 1; k < len(p.tape); k = int(p.tape[k+1].next) {
		earlier := -1
		for e := at + 1; e < k; e = int(p.tape[e+1].next) {
			if p.sameKey(e, k) {
				earlier = e
			}
		}
		if earlier >= 0 {
			again = append(again, [2]int{k, earlier})
		}
	}
	return again
}

// runRepeats compares keys of one hash, given in order of position.
func (p *parser) runRepeats(run []uint64) (again [][2]int) {
	if len(run) == 1 {
		return nil
	}
	last := map[string]int{}
	for _, e := range run {
		k := int(uint32(e))
		key := unescape(p.src, int(p.tape[k].off))
		if earlier, ok := last[key]; ok {
			again = append(again, [2]int{k, earlier})
			if p.opt.Repeated == nil {
				return again // the first is refused
			}
		}
		last[key] = k
	}
	return again
}

// repeats refuses the first repeated key, or marks the earlier members as replaced.
func (p *parser) repeats(again [][2]int) error {
	slices.SortFunc(again, func(a, b [2]int) int { return a[0] - b[0] })
	for _, r := range again {
		key := p.tape[r[0]]
		name := unescape(p.src, int(key.off))
		if p.opt.Repeated == nil {
			return &Error{Duplicate, int(key.off), fmt.Sprintf("key %q occurs twice", name)}
		}
		p.opt.Repeated(name, int(key.off))
		p.tape[r[1]].next = 1
	}
	return nil
}

// sameKey reports whether the keys at two tape positions are equal when unescaped.
func (p *parser) sameKey(a, b int) bool {
	ra, ea := raw(p.src, int(p.tape[a].off))
	rb, eb := raw(p.src, int(p.tape[b].off))
	if !ea && !eb {
		return ra == rb
	}
	return unescape(p.src, int(p.tape[a].off)) == unescape(p.src, int(p.tape[b].off))
}

// hashAt returns 32 bits that depend on the unescaped string at offset off.
func (p *parser) hashAt(off uint32) uint64 {
	s, escaped := raw(p.src, int(off))
	if !escaped {
		return hash(s)
	}
	p.scratch = appendUnescaped(p.scratch[:0], s)
	return maphash.Bytes(seed, p.scratch) >> 32
}

func hash(key string) uint64 { return maphash.String(seed, key) >> 32 }
