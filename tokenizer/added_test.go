package tokenizer

import (
	"fmt"
	"testing"
)

func TestAddedSet(t *testing.T) {
	a := newAddedSet(map[string]int32{"<a": 1, "<ab>": 2, "b>": 3, "<abcd": 4})
	same := newAddedSet(map[string]int32{"<a": 1, "<ab>": 2})
	for _, c := range []struct {
		name string
		set  *addedSet
		text string
		from int
		want string
	}{
		{"no tokens", newAddedSet(nil), "<a", 0, "2 2 -1"},
		{"nothing there", a, "xyz", 0, "3 3 -1"},
		{"longest", a, "x<ab>", 0, "1 5 2"},
		{"the longer one is cut", a, "<ab", 0, "0 2 1"},
		{"the longer one differs late", a, "<abcx", 0, "0 2 1"},
		{"leftmost before longest", a, "<axb>", 0, "0 2 1"},
		{"from the middle", a, "<ab>", 1, "2 4 3"},
		{"one first byte, a beginning before", same, "<<x<ab>", 0, "3 7 2"},
		{"one first byte, none", same, "x<", 0, "2 2 -1"},
		{"empty text", a, "", 0, "0 0 -1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start, end, id := c.set.find(c.text, c.from)
			if got := fmt.Sprint(start, end, id); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
