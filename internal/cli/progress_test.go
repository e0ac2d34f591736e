package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestGroup: several operations at once, as lines and off.
func TestGroup(t *testing.T) {
	tests := []struct {
		name string
		mode progressMode
		want []string
	}{
		{"off", progressOff, nil},
		{"lines", progressLines, []string{"a: 10 B of 10 B (100 %)", "b: 15 B of 20 B (75 %)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			g := (&Env{Err: &out, progress: tt.mode}).Group()
			a, b := g.Progress("a", 10, Bytes), g.Progress("b", 20, Bytes)
			var wg sync.WaitGroup
			wg.Go(func() { a.Resume(4); a.Add(6) })
			wg.Go(func() { b.Add(20); b.Add(-5) })
			wg.Wait()
			a.Close()
			b.Close()
			g.Close()
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, out.String())
				}
			}
			if tt.want == nil && out.Len() > 0 {
				t.Errorf("off, but it says %q", out.String())
			}
		})
	}
}

// TestGroupBars: bars that end early do not keep the display waiting.
func TestGroupBars(t *testing.T) {
	var out bytes.Buffer
	g := (&Env{Err: &out, progress: progressBars}).Group()
	a, b := g.Progress("a", 10, Bytes), g.Progress("b", 20, Bytes)
	a.Add(10)
	b.Add(5)
	a.Close()
	b.Close()
	g.Close()
	(&Env{Err: &out, progress: progressBars}).Group().Close() // without an operation
}

// TestProgressLogged: where there is no terminal, a long operation says how far it is each time that the pause is over.
func TestProgressLogged(t *testing.T) {
	var out bytes.Buffer
	p := (&Env{Log: slog.New(slog.NewTextHandler(&out, nil)), progress: progressLogged}).Progress("measuring", 40, Count)
	p.Add(4)
	p.last, p.begun = time.Now().Add(-LogPause), time.Now().Add(-LogPause)
	p.Add(6)
	p.Add(1)
	p.Close()
	const want = `msg="measuring: 10 of 40 (25 %), 30s left"`
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, want) {
		t.Errorf("it says %q", got)
	}
}
