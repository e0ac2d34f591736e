// Command countdown writes Countdown problems as lines of JSON, from a seed: reach a number with given numbers.
//
//	countdown [-seed N] [-problems N] [-numbers N] [-most N]         texts with their solutions, to train on
//	countdown -questions [-seed N] ...                               what apr eval --task countdown asks and judges
//
// The problems of two seeds are drawn apart; one of few numbers may come twice. A teacher of 30M parameters (not
// measured, it wants a GPU):
//
//	countdown -problems 2000000 > train.jsonl && countdown -questions -seed 2 -problems 1000 > questions.jsonl
//	apr distill --alpha 0 --student-config examples/gosrc/teacher-30m-config.json --teacher examples/gosrc/teacher.apr \
//	  -d train.jsonl --steps 20000 --batch-size 64 --seq-len 256 -o runs/countdown
//	apr eval runs/countdown/student.apr --task countdown --data questions.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"apr/eval"
)

func main() {
	seed := flag.Uint64("seed", 1, "seed of the problems")
	problems := flag.Int("problems", 10000, "problems")
	numbers := flag.Int("numbers", 4, "numbers of a problem, 2 to 8")
	most := flag.Int("most", 20, "largest number; targets go to ten times that")
	questions := flag.Bool("questions", false, "write questions for apr eval, without solutions")
	flag.Parse()
	if *problems < 1 || *numbers < 2 || *numbers > 8 || *most < 2 || *most > 1000 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*seed, *problems, *numbers, *most, *questions); err != nil {
		fmt.Fprintln(os.Stderr, "countdown:", err)
		os.Exit(1)
	}
}

// write prints the problems.
func write(seed uint64, problems, numbers, most int, questions bool) error {
	w := bufio.NewWriter(os.Stdout)
	lines := json.NewEncoder(w)
	for i := range problems {
		c := eval.NewCountdown(seed, i, numbers, most)
		var line any = map[string]string{"text": c.Prompt() + c.Solution + "\n"}
		if questions {
			line = map[string]any{"prompt": c.Prompt(), "numbers": c.Numbers, "target": c.Target}
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return w.Flush()
}
