// Command align makes the table of teachers with another tokenizer: what a small student learns from the text alone
// (cross-entropy); from a teacher whose tokenizer is of another kind, by a projection of its probabilities (projected:
// where it does not teach, cross-entropy has half of its weight, or the text stands for the teacher); from a second
// teacher with the student's tokenizer (own tokenizer); and, as a control, from the first teacher's probabilities in
// sorted order, given to the student's ids in the order of its own (sorted).
//
//	align [-seeds 1,2,3] [-ids N] [-teacher-steps A,B] [-teacher-bits B] [-steps N] [-limit 20m]
//
// [-backend cuda] -log FILE.jsonl [-docs FILE] TEXT HELD-OUT
//
//	align -table FILE.jsonl [-docs FILE]
//
// It learns two tokenizers from TEXT, a byte-level one for the students and the second teacher, and one of pieces, as
// SentencePiece has them, for the first teacher; trains both teachers; and then all students with equal tokens. Scores
// are bits per byte of HELD-OUT, which do not depend on the tokenizer. With -teacher-bits both teachers stop at the
// same score, so that they are equally good and what students gain from them can be compared: their learning rate stays
// constant, and a teacher that does not reach the score stops after four times its steps. Each student is a line of the
// log, and is not trained again when the command is started again with the same settings; the teachers are.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"apr/bench/trial"
)

// settings are what all lines of a log share.
type settings struct {
	Machine      string  `json:"machine"`
	Text         string  `json:"text"` // hash of the file
	Held         string  `json:"held"`
	IDs          int     `json:"ids"` // of each tokenizer
	Length       int     `json:"seq_len"`
	Rows         int     `json:"batch_size"`
	Steps        int     `json:"steps"`
	TeacherSteps string  `json:"teacher_steps"` // of both teachers
	TeacherBits  float64 `json:"teacher_bits"`  // at which a teacher stops; 0: after its steps
	Rate         float64 `json:"learning_rate"`
	Alpha        float64 `json:"alpha"`
	HeldTokens   int     `json:"held_tokens"`
	Backend      string  `json:"backend,omitempty"` // empty: the CPU
}

// record is a line of the log: one model, scored.
type record struct {
	How     string  `json:"how"`
	Seed    uint64  `json:"seed"`
	Bits    float64 `json:"bits_per_byte"`
	Taught  float64 `json:"taught,omitempty"` // share of the targets
	Steps   int     `json:"steps,omitempty"`
	Seconds float64 `json:"seconds"`
}

// options are the flags and arguments.
type options struct {
	settings
	seeds, log, table, docs string
	text, held              string
	limit                   time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.seeds, "seeds", "1,2,3", "seeds of students, separated by commas")
	flag.StringVar(&o.log, "log", "", "file of JSON lines to write, or to go on with")
	flag.StringVar(&o.table, "table", "", "make the table of this log, and run nothing")
	flag.StringVar(&o.docs, "docs", "", "document whose table is rewritten; else it is printed")
	flag.StringVar(&o.Machine, "machine", "", "what the machine is called (default: processors and system)")
	flag.StringVar(&o.TeacherSteps, "teacher-steps", "600,600", "steps of the first and of the second teacher")
	flag.Float64Var(&o.TeacherBits, "teacher-bits", 0, "stop each teacher at so many bits per byte of the held-out text: "+
		"both are as good then; below 0: at what the first has after its steps")
	flag.IntVar(&o.IDs, "ids", 1024, "ids of each tokenizer")
	flag.IntVar(&o.Length, "seq-len", 128, "tokens of a row")
	flag.IntVar(&o.Rows, "batch-size", 8, "rows of a step")
	flag.IntVar(&o.Steps, "steps", 160, "steps of a student")
	flag.Float64Var(&o.Rate, "learning-rate", 4e-3, "peak learning rate")
	flag.Float64Var(&o.Alpha, "alpha", .5, "weight of the divergence")
	flag.IntVar(&o.HeldTokens, "held-tokens", 30000, "tokens of the student's tokenizer that are scored")
	flag.StringVar(&o.Backend, "backend", "", "train on a GPU with cuda, in float32 (default: on the CPU)")
	flag.DurationVar(&o.limit, "limit", 0, "end after this time, with what is done")
	flag.Parse()
	if flag.NArg() != 2 && o.table == "" || flag.NArg() > 0 && o.table != "" {
		flag.Usage()
		os.Exit(2)
	}
	o.text, o.held = flag.Arg(0), flag.Arg(1)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "align:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) (err error) {
	if o.table != "" {
		l, err := trial.ReadLog[settings, record](o.table)
		if err != nil {
			return err
		}
		return o.write(l)
	}
	for path, hash := range map[string]*string{o.text: &o.Text, o.held: &o.Held} {
		if *hash, err = trial.Hash(path); err != nil {
			return err
		}
	}
	if o.Machine == "" {
		o.Machine = trial.Machine()
	}
	if o.log == "" {
		return errors.New("-log names a file that an interrupted table goes on from")
	}
	l, err := trial.OpenLog[settings, record](o.log, o.settings)
	if err != nil {
		return err
	}
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	err = o.make(ctx, l)
	return errors.Join(o.write(l), err) // a run that was cut short leaves the rows that it has
}

// numbers reads integers that commas separate.
func numbers(list string) (all []uint64, err error) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// write prints the table, or puts it into a document.
func (o *options) write(l *trial.Log[settings, record]) error {
	text := markdown(l.Settings, l.All())
	if o.docs == "" {
		_, err := os.Stdout.WriteString(text)
		return err
	}
	return trial.Replace(o.docs, "align", text)
}

// markdown is the table of a log.
func markdown(s settings, all []record) string {
	var b strings.Builder
	if s.Backend != "" {
		s.Machine += " (" + s.Backend + ", float32)"
	}
	fmt.Fprintf(&b, "On %s; tokenizers of %d ids, students %d steps of %d rows of %d, teachers %s steps, alpha %g.\n\n",
		s.Machine, s.IDs, s.Steps, s.Rows, s.Length, s.TeacherSteps, s.Alpha)
	b.WriteString("| model | bits per byte | seeds | taught | seconds |\n|---|--:|--:|--:|--:|\n")
	bits := map[string][]float64{}
	for _, how := range append(teachers[:], ways...) {
		var taught, seconds []float64
		for _, r := range all {
			if r.How == how {
				bits[how], taught, seconds = append(bits[how], r.Bits), append(taught, r.Taught), append(seconds, r.Seconds)
			}
		}
		if len(seconds) == 0 {
			continue
		}
		share := "–"
		if m := trial.Mean(taught); m > 0 {
			share = fmt.Sprintf("%.0f %%", 100*m)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %s | %.0f |\n", how, trial.Spread(bits[how], 4), len(seconds), share,
			trial.Mean(seconds))
	}
	b.WriteString("\n" + verdict(bits))
	return b.String()
}

// verdict says what of the table holds: gains over cross-entropy, the part that the projection loses, the control, and
// how far the teachers are apart.
func verdict(bits map[string][]float64) string {
	ce, projected, own, control := bits[plain], bits[withText], bits[ownTokens], bits[sorted]
	if len(ce) == 0 || len(projected) == 0 || len(own) == 0 {
		return ""
	}
	gain, best := trial.Mean(ce)-trial.Mean(projected), trial.Mean(ce)-trial.Mean(own)
	text := fmt.Sprintf("The projected teacher gains %.4f bits per byte over cross-entropy, the one with the student's "+
		"own tokenizer %.4f: "+
		"the projection loses %.0f %% of it.", gain, best, 100*(1-gain/best))
	if a, b := bits[teachers[0]], bits[teachers[1]]; len(a) == 1 && len(b) == 1 {
		text += fmt.Sprintf(" The teachers differ by %.1f %%.", 100*(a[0]/b[0]-1))
	}
	if len(control) > 0 {
		text += fmt.Sprintf(" Sorted probabilities gain %.4f.", trial.Mean(ce)-trial.Mean(control))
	}
	return text + "\n"
}
