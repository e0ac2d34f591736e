package tokenizer

import "strings"

// addedSet finds added tokens (special tokens and the like) in text: leftmost, and at one place the longest. It is a
// trie, so that the time at one place is bounded by the longest token however many there are.
type addedSet struct {
	nodes []addedNode // nodes[0] is the root
	first int         // the first byte of all tokens when it is the same, else -1
}

type addedNode struct {
	next map[byte]int32 // index of the node behind each byte
	id   int32          // of the token that ends here, or None
}

// newAddedSet returns nil for no tokens. No token is empty.
func newAddedSet(tokens map[string]int32) *addedSet {
	if len(tokens) == 0 {
		return nil
	}
	a := &addedSet{nodes: []addedNode{{id: None}}, first: -1}
	for text, id := range tokens {
		at := int32(0)
		for _, c := range []byte(text) {
			next, ok := a.nodes[at].next[c]
			if !ok {
				next = int32(len(a.nodes))
				if a.nodes[at].next == nil {
					a.nodes[at].next = make(map[byte]int32)
				}
				a.nodes[at].next[c] = next
				a.nodes = append(a.nodes, addedNode{id: None})
			}
			at = next
		}
		a.nodes[at].id = id
	}
	if root := a.nodes[0].next; len(root) == 1 {
		for c := range root {
			a.first = int(c)
		}
	}
	return a
}

// find returns the first added token in s at or after i, as s[start:end], and its id; without one it returns len(s)
// twice and None.
func (a *addedSet) find(s string, i int) (start, end int, id int32) {
	if a == nil {
		return len(s), len(s), None
	}
	for ; i < len(s); i++ {
		if a.first >= 0 {
			skip := strings.IndexByte(s[i:], byte(a.first))
			if skip < 0 {
				break
			}
			i += skip
		}
		if n, id := a.longest(s[i:]); n > 0 {
			return i, i + n, id
		}
	}
	return len(s), len(s), None
}

// longest returns the length and id of the longest token at the start of s, or 0.
func (a *addedSet) longest(s string) (length int, id int32) {
	at, id := int32(0), None
	for i := range len(s) {
		next, ok := a.nodes[at].next[s[i]]
		if !ok {
			break
		}
		at = next
		if a.nodes[at].id != None {
			length, id = i+1, a.nodes[at].id
		}
	}
	return length, id
}

// begins reports whether some token is longer than s and begins with it.
func (a *addedSet) begins(s string) bool {
	if a == nil {
		return false
	}
	at := int32(0)
	for i := range len(s) {
		next, ok := a.nodes[at].next[s[i]]
		if !ok {
			return false
		}
		at = next
	}
	return len(a.nodes[at].next) > 0
}
