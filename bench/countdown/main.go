// Command countdown writes Countdown problems as lines of JSON, from a seed: reach a number with given numbers. It also
// makes the table of what students learn from a teacher of them, on text of the data and on text of their own.
//
//	countdown [-seed N] [-problems N] [-numbers N] [-most N] [-form text|steps]   texts with solutions, to train on
//	countdown -questions [-seed N] ...         what apr eval --task countdown asks and judges
//	countdown table [-apr bin/apr] [-backend cuda] [-jobs N] [-limit 5m] -log FILE.jsonl [-docs FILE]
//	countdown table -table FILE.jsonl [-docs FILE]
//
// Training texts and questions share no problem, in any order of its numbers: one problem in 16 is held out, by a hash.
// The problems of two seeds are drawn apart; one of few numbers may come twice. -form steps writes prompt and
// completion, the solution an operation at a time; docs/onpolicy.md says how the table is made.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"apr/eval"
)

// problems say which problems are written, and how.
type problems struct {
	seed          uint64
	count         int
	numbers, most int
	form          string // text, steps; questions
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "table" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		if err := tableMain(ctx, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "countdown table:", err)
			os.Exit(1)
		}
		return
	}
	var p problems
	flag.Uint64Var(&p.seed, "seed", 1, "seed of the problems")
	flag.IntVar(&p.count, "problems", 10000, "problems")
	flag.IntVar(&p.numbers, "numbers", 4, "numbers of a problem, 2 to 8")
	flag.IntVar(&p.most, "most", 20, "largest number; targets go to ten times that")
	flag.StringVar(&p.form, "form", "text", "text, or steps: prompt and completion, an operation at a time")
	questions := flag.Bool("questions", false, "write questions for apr eval, without solutions")
	flag.Parse()
	if *questions {
		p.form = "questions"
	}
	known := p.form == "text" || p.form == "steps" || p.form == "questions"
	if p.count < 1 || p.numbers < 2 || p.numbers > 8 || p.most < 2 || p.most > 1000 || flag.NArg() > 0 || !known {
		flag.Usage()
		os.Exit(2)
	}
	if err := p.write(os.Stdout, *questions); err != nil {
		fmt.Fprintln(os.Stderr, "countdown:", err)
		os.Exit(1)
	}
}

// write prints problems that are held out, or those that are not.
func (p problems) write(to io.Writer, held bool) error {
	w := bufio.NewWriter(to)
	lines := json.NewEncoder(w)
	for i, n := 0, 0; n < p.count; i++ {
		c := eval.NewCountdown(p.seed, i, p.numbers, p.most)
		if c.HeldOut() != held {
			continue
		}
		n++
		var line any
		switch p.form {
		case "questions":
			line = map[string]any{"prompt": c.Prompt(), "numbers": c.Numbers, "target": c.Target}
		case "steps":
			line = map[string]string{"prompt": c.Prompt(), "completion": c.Steps + "\n"}
		default:
			line = map[string]string{"text": c.Prompt() + c.Solution + "\n"}
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return w.Flush()
}
