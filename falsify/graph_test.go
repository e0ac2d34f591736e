package falsify

import (
	"fmt"
	"strings"
	"testing"

	"apr/internal/fault"
)

func TestGraph(t *testing.T) {
	long := []string{}
	for i := range 100_000 {
		long = append(long, fmt.Sprintf("c%06d c%06d", i, i+1))
	}
	tests := []struct {
		name, edges string // "from to,…"; "from" alone rests on nothing
		order, want string
	}{
		{"none", "b,a", "a b", ""},
		{"chain", "a b,b c,c", "c b a", ""},
		{"diamond", "a c b,b d,c d,d", "d b c a", ""},
		{"twice", "a b b,b", "b a", ""},
		{"missing", "a x", "a", "a depends on x, which is not there"},
		{"itself", "a a", "a", "contracts depend on each other: a"},
		{"circle", "a b,b c,c a", "c b a", "contracts depend on each other: a -> b -> c"},
		{"circle off the way", "a b,b c,c b", "c b a", "contracts depend on each other: b -> c"},
		{"long", strings.Join(long, ","), "", "c099999 depends on c100000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var all []*Contract
			for line := range strings.SplitSeq(tt.edges, ",") {
				names := strings.Fields(line)
				all = append(all, &Contract{ID: names[0], Metadata: Metadata{DependsOn: names[1:]}})
			}
			g := NewGraph(all)
			if got := strings.Join(g.Contracts, " "); tt.order != "" && got != tt.order {
				t.Errorf("order %s, want %s", got, tt.order)
			}
			err := g.Err()
			if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || fault.KindOf(err) != fault.Vacuous) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
