package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// helpApp has a command with groups, one that leaves flags to it, and a topic.
func helpApp(out *bytes.Buffer, environ ...string) *App {
	var s string
	long := "A paragraph that is broken by hand where the source is\nbroken, and goes on.\n  name  an item with a text that is longer than a line of forty columns\n\nThe end."
	table := func() []Option {
		return []Option{
			{Name: "model", Arg: true, Required: true, Value: String(&s, ""), Complete: func(Settings) []string { return []string{"one", "two"} }},
			{Name: "first", First: true, Value: String(&s, ""), Help: "comes first"},
			{Name: "loss", Group: "Loss", Value: Enum(&s, "a", "a", "b"), Help: "a loss"},
			{Name: "path", Group: "Data", Value: String(&s, ""), Help: "a path"},
			{Name: "unbuilt", Group: "Data", Hidden: true, Value: String(&s, ""), Help: "not there"},
		}
	}
	big, small := table(), append(table(), Option{Name: "own", Value: String(&s, ""), Help: "of its own"})
	for i := range small {
		if small[i].Name != "own" {
			small[i].ListedBy = "apr big"
		}
	}
	return &App{Name: "apr", In: strings.NewReader(""), Out: out, Err: out, Environ: environ,
		Commands: []*Command{
			{Name: "big", Short: "Big", Long: long, Example: "apr big model --loss a --path somewhere/else/far\napr big m", Options: big},
			{Name: "small", Short: "Small", Options: small},
		},
		Topics: []Topic{{Name: "things", Short: "What things are", Text: "Things.", Command: "big", Groups: []string{"Data"}}},
	}
}

func TestHelpPages(t *testing.T) {
	for _, tt := range []struct {
		args, columns string
		want, without []string
	}{
		{"big --help", "40", []string{
			"A paragraph that is broken by hand where\nthe source is broken, and goes on.\n  name  an item with a text that is\n        longer than a line of forty\n        columns\n\nThe end.\n",
			"Examples:\n  apr big model --loss a \\\n    --path somewhere/else/far\n  apr big m\n", "First flags:\n      --first TEXT  comes first\n\nLoss:\n", "Data:\n      --path TEXT  a path\n",
		}, []string{"unbuilt"}},
		{"help small", "80", []string{"Flags:\n      --own TEXT  of its own\n", "Flags of apr big:\n  All flags of apr big are taken too: apr big --help lists them.\n"}, []string{"--path", "--first"}},
		{"help things", "", []string{"Things.\n", "apr big: data:\n      --path TEXT  a path\n"}, []string{"--loss", "unbuilt"}},
		{"--help", "", []string{"Topics (apr help TOPIC):\n  things  What things are\n"}, nil},
		{"help topics", "", []string{"What several commands have in common.\n", "  things  What things are\n"}, nil},
		{"help man big", "", []string{".TH BIG", ".SH NAME\napr\\-big \\- Big\n", ".SH LOSS\n.TP\n.B     \\-\\-loss a|b\n", ".SH EXAMPLES\n.nf\napr big model"}, []string{"unbuilt"}},
		{"help man things", "", []string{".TH APR\\-THINGS 1"}, nil},
		{"__complete big o", "", []string{"one\ntwo\n"}, nil},
		{"__complete big --loss ", "", []string{"a\nb\n"}, nil},
	} {
		var out bytes.Buffer
		app := helpApp(&out, "COLUMNS="+tt.columns)
		if code := app.Main(strings.Split(tt.args, " ")); code != 0 {
			t.Errorf("%s: exit %d: %s", tt.args, code, out.String())
		}
		text := strings.ReplaceAll(out.String(), ".TH APR\\-BIG", ".TH BIG")
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q:\n%s", tt.args, want, text)
			}
		}
		for _, not := range tt.without {
			if strings.Contains(text, not) {
				t.Errorf("%s holds %q:\n%s", tt.args, not, text)
			}
		}
	}
}

// TestHelpWidth: every line of help ends within the terminal, and within 80 columns without one.
func TestHelpWidth(t *testing.T) {
	for _, columns := range []int{0, 60, 100, 300} {
		for _, command := range []string{"big", "small", "things"} {
			var out bytes.Buffer
			helpApp(&out, fmt.Sprintf("COLUMNS=%d", columns)).Main([]string{"help", command})
			limit := min(max(columns, map[bool]int{true: 80}[columns == 0]), 120)
			for line := range strings.SplitSeq(out.String(), "\n") {
				if n := utf8.RuneCountInString(line); n > limit {
					t.Errorf("%s, %d columns: %d in %q", command, columns, n, line)
				}
			}
		}
	}
}
