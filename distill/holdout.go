package distill

import (
	"fmt"
	"path/filepath"
	"slices"

	"apr/corpus"
	"apr/eval"
	"apr/internal/fault"
	"apr/tokenizer"
)

// HoldEnough is the ValFraction of a run that nobody gave one: see corpus.Tokens.HoldOutEnough.
const HoldEnough = -1.0

// EvalByCost is the EvalEvery of a run that nobody gave one: see evalEvery.
const EvalByCost = -1

// holdOut takes the text that students are scored on out of in.train, or reads it.
func (in *inputs) holdOut(c Config, read func() (*corpus.Tokens, error), obs Observer) (err error) {
	switch {
	case len(c.EvalData) > 0:
		if in.held, err = read(); err == nil {
			err = corpus.CheckOverlap(in.train, in.held)
		}
	case c.ValFraction == HoldEnough:
		in.holdEnough(c, obs)
	case c.ValFraction > 0:
		in.train, in.held, err = in.train.HoldOut(c.ValFraction)
	}
	if err != nil || in.held == nil {
		return err
	}
	in.heldOut = in.held.ContentSHA256()
	if in.windows(c) == 0 {
		obs.Message("warning: held-out text has %s, fewer than one window of %d: nothing is evaluated; "+
			"--val-fraction or --eval-data give more", fault.Plural(len(in.held.IDs), "token"), c.SeqLen)
		in.held = nil
	} else if in.held.Mask != nil && !slices.Contains(in.held.Mask, 1) {
		obs.Message("warning: held-out text has no reply, and so no target: nothing is evaluated; " +
			"--eval-data gives other text")
		in.held = nil
	}
	in.warnOfFewWindows(c, obs)
	return nil
}

// windows is how many windows of a row's length are held out.
func (in *inputs) windows(c Config) int { return max(0, len(in.held.IDs)-1) / c.SeqLen }

// warnOfFewWindows says where a control is trained that cannot be told from the student.
func (in *inputs) warnOfFewWindows(c Config, obs Observer) {
	if in.held == nil || !in.control.On {
		return
	}
	if n := in.windows(c); n < eval.EnoughBlocks {
		obs.Message("warning: %d windows of held-out text are too few to tell the student from the control, "+
			"which takes %d: more text, or a smaller --seq-len", n, eval.EnoughBlocks)
	}
}

// holdEnough holds out enough windows, or as many as a fifth of the text gives.
func (in *inputs) holdEnough(c Config, obs Observer) {
	all := len(in.train.IDs)
	in.train, in.held, in.cut = in.train.HoldOutEnough(c.SeqLen, in.textBytes)
	switch {
	case in.held == nil:
		obs.Message("warning: the text has %s, a fifth of which is less than one window of %d: nothing is held out or "+
			"evaluated; use more text, a smaller --seq-len, or --eval-data",
			fault.Plural(all, "token"), c.SeqLen)
	case in.cut > 0 && len(in.held.Docs) > 1:
		obs.Message("held out: %d whole documents and the last %d tokens of the longest one", len(in.held.Docs)-1, in.cut)
	case in.cut > 0:
		obs.Message("held out: the last %d tokens of the longest document", in.cut)
	}
	if in.held != nil {
		in.heldName = fmt.Sprintf("%.2g %% of %s", 100*float64(len(in.held.IDs))/float64(all), filepath.Base(in.records["data"].Path))
	}
}

// textBytes is how many bytes of a document an id stands for: none if it is a special token, which texts do not hold.
func (in *inputs) textBytes(id int32) int {
	if in.tokenizer == nil {
		return 0
	}
	if k := in.tokenizer.Kind(id); k != tokenizer.Normal && k != tokenizer.UserDefined {
		return 0
	}
	text, _ := in.tokenizer.Bytes(id)
	return len(text)
}

// How often a leg is scored on the way if nobody says it.
const (
	evalLongest = 200 // steps
	evalFew     = 3   // times: two points are needed to read a score between them, and the shorter leg may take a third of the longer one's time
	evalMany    = 9
	evalShare   = 0.1 // of the steps' time, for more than a few
	evalMost    = 0.5 // of it, for a few
)

// evalEvery returns the steps between evaluations, for a held-out text and steps of so many tokens: for nine
// evaluations of a leg, down to three where they would take more than a tenth of its time, and every 200 steps of a
// long run. A forward pass is a third of a step. Where three would take longer than half of the steps, there are those
// of 200 steps only.
func evalEvery(steps, heldTokens, stepTokens int) int {
	one := float64(heldTokens) / float64(3*stepTokens) // in steps
	if evalFew*one > evalMost*float64(steps) {
		return evalLongest
	}
	n := evalMany
	if affordable := evalShare * float64(steps) / one; affordable < evalMany {
		n = max(evalFew, int(affordable))
	}
	return max(1, min(evalLongest, (steps+n)/(n+1)))
}
