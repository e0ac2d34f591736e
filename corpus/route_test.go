package corpus

import (
	"errors"
	"slices"
	"testing"

	"apr/internal/fault"
)

// routeTokens are documents of two sources in turns: those of "a" hold odd ids, those of "b" even ones.
func routeTokens() *Tokens {
	t := &Tokens{}
	for i := range 20 {
		source := []string{"a", "b"}[i%2]
		for range 3 + i%5 {
			t.IDs = append(t.IDs, int32(2*i+1-i%2))
		}
		t.Docs = append(t.Docs, Doc{End: int64(len(t.IDs)), Hash: Hash{byte(i)}})
		t.Sources = append(t.Sources, source)
	}
	return t
}

func wayOf(source string) (int, bool) {
	at := slices.Index([]string{"b", "a"}, source)
	return at, at >= 0
}

// TestRoutedRows: no row and no window holds text of two routes, batches have their rows in order of route, and every row is served.
func TestRoutedRows(t *testing.T) {
	tok, err := routeTokens().Route(wayOf)
	if err != nil {
		t.Fatal(err)
	}
	odd := func(ids []int32, route int) {
		t.Helper()
		for _, id := range ids {
			if int(id%2) != route { // route 1 is "a"
				t.Errorf("id %d in a row of route %d", id, route)
			}
		}
	}
	for _, cut := range []func(*Tokens, int) (*Rows, error){Pack, OnePerRow} {
		rows, err := cut(tok, 4)
		if err != nil {
			t.Fatal(err)
		}
		l, err := NewLoader(rows, LoaderOptions{BatchRows: 5, Shuffle: true, Seed: 1, Documents: true})
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			at := l.Position()
			b, err := l.Next()
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Routes) != 5 || !slices.IsSorted(b.Routes) {
				t.Fatalf("routes %v", b.Routes)
			}
			for i, row := range l.RowsFrom(at) {
				inputs, _, _ := b.row(i)
				if r := b.Routes[i]; r != rows.Route(row) {
					t.Errorf("row %d goes %d, is said to go %d", row, rows.Route(row), r)
				} else if rows.starts == nil {
					odd(inputs, r)
				}
			}
			if part := b.Slice(1, 3); !slices.Equal(part.Routes, b.Routes[1:3]) {
				t.Errorf("a slice goes %v of %v", part.Routes, b.Routes)
			}
		}
	}
	w, err := NewWindows(tok, 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	all := w.Batch(0, w.Len())
	for i, r := range all.Routes {
		inputs, _, _ := all.row(i)
		odd(inputs, r)
	}
	counts := tok.RouteTokens(2)
	if counts[0]+counts[1] != int64(len(tok.IDs)) || counts[0] == 0 || counts[1] == 0 {
		t.Errorf("ids of routes: %v of %d", counts, len(tok.IDs))
	}
}

// TestUnrouted: a source that nobody knows is named.
func TestUnrouted(t *testing.T) {
	tok := routeTokens()
	tok.Sources[7] = "c"
	_, err := tok.Route(wayOf)
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid || f.Msg != `document 8 has source "c", and no route` {
		t.Errorf("%v", err)
	}
}
