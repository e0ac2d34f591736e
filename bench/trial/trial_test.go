package trial

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

type settings struct{ A int }

type record struct {
	Name  string
	Value float64
}

func TestLogGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.jsonl")
	l, err := OpenLog[settings, record](path, settings{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(record{"a", .1}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, `{"Name":"b","Va`...), 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err = OpenLog[settings, record](path, settings{1}); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(record{"c", .2}); err != nil {
		t.Fatal(err)
	}
	read, err := ReadLog[settings, record](path)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Records) != 2 || read.Records[0] != (record{"a", .1}) || read.Records[1] != (record{"c", .2}) || read.Settings.A != 1 {
		t.Errorf("read %+v", read)
	}
	if _, err := OpenLog[settings, record](path, settings{2}); err == nil || !strings.Contains(err.Error(), "other settings") {
		t.Errorf("a log of other settings: %v", err)
	}
}

func TestRunSaysHowACommandEnded(t *testing.T) {
	ctx := context.Background()
	run := func(script string) error { return Run(ctx, []string{"WORD=yes"}, nil, "sh", "-c", script) }
	for script, want := range map[string][2]bool{
		`test "$WORD" = yes`: {false, false},
		`exit 9`:             {true, false},
		`exit 21`:            {false, true},
		`exit 1`:             {false, false},
		`echo 'apr: error: unknown command "x"' >&2; exit 2`:   {true, false},
		`echo 'apr: error: unknown flag --layers' >&2; exit 2`: {false, false},
	} {
		err := run(script)
		if got := [2]bool{Refused(err), Diverged(err)}; got != want {
			t.Errorf("%s: refused, diverged are %v", script, got)
		}
		if (err == nil) != strings.HasPrefix(script, "test") {
			t.Errorf("%s: %v", script, err)
		}
	}
	if got := Why(run(`echo 'apr: error: not built yet' >&2; echo more >&2; exit 9`)); got != "not built yet" {
		t.Errorf("why is %q", got)
	}
	var result struct{ A float64 }
	if err := Run(ctx, nil, &result, "sh", "-c", `echo '{"a": 1.5}'`); err != nil || result.A != 1.5 {
		t.Errorf("%v %v", result, err)
	}
	if err := Run(ctx, nil, &result, "sh", "-c", "echo no"); err == nil {
		t.Error("text was read as JSON")
	}
}

func TestEachEndsInTime(t *testing.T) {
	clock, ctx, stop := NewClock(context.Background(), 50*time.Millisecond)
	defer stop()
	var began atomic.Int64
	left, err := Each(ctx, clock, 1, make([]int, 100), func(ctx context.Context, _ int) error {
		began.Add(1)
		time.Sleep(20 * time.Millisecond)
		return nil
	})
	if err != nil || began.Load() < 1 || began.Load() > 3 || left != 100-int(began.Load()) {
		t.Errorf("%d began, %d were left: %v", began.Load(), left, err)
	}
	clock, ctx, stop = NewClock(context.Background(), 0)
	defer stop()
	wrong := errors.New("wrong")
	left, err = Each(ctx, clock, 2, make([]int, 10), func(context.Context, int) error { return wrong })
	if !errors.Is(err, wrong) || left == 0 {
		t.Errorf("after an error %d were left: %v", left, err)
	}
}

func TestSpread(t *testing.T) {
	for want, values := range map[string][]float64{"": nil, "1.50": {1.5}, "2.00 ± 1.00": {1, 3}} {
		if got := Spread(values, 2); got != want {
			t.Errorf("%v is %q, want %q", values, got, want)
		}
	}
}

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.md")
	if err := os.WriteFile(path, []byte("a\n<!-- t begin -->\nold\n<!-- t end -->\nb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, "t", "new\n"); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	if string(text) != "a\n<!-- t begin -->\n\nnew\n\n<!-- t end -->\nb\n" {
		t.Errorf("%q", text)
	}
	if err := Replace(path, "other", ""); err == nil {
		t.Error("a document without marks was written")
	}
}
