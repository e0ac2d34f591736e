package crashdisk

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// maxChanges bounds the operations of a directory between two syncs.
const maxChanges = 16

// States returns every state in which a power cut at this moment may leave the disk, each as a disk on which all is
// durable.
func (d *Disk) States() iter.Seq[*Disk] {
	return func(yield func(*Disk) bool) {
		for root := range states(d.root) {
			if !yield(&Disk{root: root.copy(), Space: d.Space}) { // states share nodes
				return
			}
		}
	}
}

// copy returns a node of a state, on which all is durable, as one of its own.
func (n *node) copy() *node {
	c := &node{dir: n.dir, data: n.data, saved: n.saved}
	if n.dir {
		c.names = make(map[string]*node, len(n.names))
		for name, child := range n.names {
			c.names[name] = child.copy()
		}
		c.durable = maps.Clone(c.names)
	}
	return c
}

// String lists the files of a disk with their contents, for messages and to tell states apart.
func (d *Disk) String() string {
	var b strings.Builder
	d.root.list(&b, "")
	return b.String()
}

func (n *node) list(b *strings.Builder, at string) {
	if !n.dir {
		fmt.Fprintf(b, "%s %q\n", at, n.data)
		return
	}
	fmt.Fprintf(b, "%s/\n", at)
	for _, name := range slices.Sorted(maps.Keys(n.names)) {
		n.names[name].list(b, at+"/"+name)
	}
}

// states are the states of one node and all below it.
func states(n *node) iter.Seq[*node] {
	if !n.dir {
		return fileStates(n)
	}
	return func(yield func(*node) bool) {
		for _, names := range namings(n) {
			if !combine(slices.Sorted(maps.Keys(names)), names, map[string]*node{}, yield) {
				return
			}
		}
	}
}

// combine yields directories in which every name has each of its states.
func combine(names []string, from, chosen map[string]*node, yield func(*node) bool) bool {
	if len(names) == 0 {
		return yield(&node{dir: true, names: maps.Clone(chosen), durable: maps.Clone(chosen)})
	}
	for s := range states(from[names[0]]) {
		chosen[names[0]] = s
		if !combine(names[1:], from, chosen, yield) {
			return false
		}
	}
	return true
}

// namings are the different results of all subsets of the changes of a directory.
func namings(n *node) []map[string]*node {
	if len(n.changes) > maxChanges {
		panic(fmt.Sprintf("crashdisk: %d operations in a directory without a sync, more than %d", len(n.changes), maxChanges))
	}
	var all []map[string]*node
	seen := map[string]bool{}
	for subset := range 1 << len(n.changes) {
		names := maps.Clone(n.durable)
		for i, c := range n.changes {
			if subset>>i&1 == 1 {
				apply(names, c.names)
			}
		}
		var key strings.Builder
		for _, name := range slices.Sorted(maps.Keys(names)) {
			fmt.Fprintf(&key, "%s=%p ", name, names[name])
		}
		if !seen[key.String()] {
			seen[key.String()] = true
			all = append(all, names)
		}
	}
	return all
}

// fileStates are the contents that a file may have.
func fileStates(n *node) iter.Seq[*node] {
	return func(yield func(*node) bool) {
		seen := map[string]bool{}
		for _, c := range contents(n) {
			if seen[string(c)] {
				continue
			}
			seen[string(c)] = true
			if !yield(&node{data: c, saved: c}) {
				return
			}
		}
	}
}

func contents(n *node) [][]byte {
	all := [][]byte{n.saved}
	sofar := slices.Clone(n.saved)
	for _, w := range n.writes {
		all = append(all, slices.Concat(sofar, w.data[:len(w.data)/2]))
		sofar = slices.Concat(sofar, w.data)
		all = append(all, sofar)
	}
	if len(n.writes) > 0 {
		last := n.writes[len(n.writes)-1].data
		zeros := make([]byte, len(sofar))
		copy(zeros, n.saved)
		hole := slices.Clone(zeros)
		copy(hole[len(hole)-len(last):], last)
		half := slices.Clone(zeros)
		copy(half[len(half)-len(last)/2:], last[len(last)-len(last)/2:])
		all = append(all, zeros, hole, half)
	}
	return all
}
