package report

import (
	"fmt"
	"strings"

	runlog "apr/run/log"
)

// Text is a piece of held-out text, token by token.
type Text struct {
	Index  int  // among the texts of the report
	Window int  // among the run's held-out windows
	Own    *int // the step for which the student wrote it; nil: a held-out window
	Tokens []Token
	MeanKL float64 // over the tokens that count
	Count  int
}

// Token is how a token shows.
type Token struct {
	Index int
	Shown string // line ends and tabs are visible
	Break bool   // a line ends with it
	Class string // colour by KL
	Title string
	Dim   bool // it does not count in the loss
}

// klSteps are the bounds of the colours, in nats.
var klSteps = []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8}

// klClass is the colour of a divergence: k0 … k8.
func klClass(kl float64) string {
	i := 0
	for i < len(klSteps) && kl >= klSteps[i] {
		i++
	}
	return fmt.Sprintf("k%d", i)
}

// texts prepares the sample texts.
func texts(s *runlog.Samples) (all []Text) {
	if s == nil {
		return nil
	}
	for i, w := range s.Windows {
		t := Text{Index: i, Window: w.Window, Own: w.Own}
		var sum float64
		for j, tok := range w.Tokens {
			v := Token{Index: j, Shown: visible(tok.Text), Break: strings.HasSuffix(tok.Text, "\n"), Class: "first", Dim: j > 0 && !tok.Counts}
			if tok.KL != nil && tok.KL.Finite() {
				v.Class = klClass(float64(*tok.KL))
				v.Title = fmt.Sprintf("KL %.3f", *tok.KL)
				if tok.Counts {
					sum += float64(*tok.KL)
					t.Count++
				}
			}
			if tok.Teacher != nil && tok.Student != nil {
				v.Title += fmt.Sprintf("; probability by the teacher %.1f %%, by the student %.1f %%", 100*tok.Teacher.P, 100*tok.Student.P)
			}
			if v.Dim {
				v.Title += "; masked: not in the loss"
			}
			t.Tokens = append(t.Tokens, v)
		}
		if t.Count > 0 {
			t.MeanKL = sum / float64(t.Count)
		}
		all = append(all, t)
	}
	return all
}

// visible shows what has no shape: line ends as ⏎, tabs as →, other control characters by their pictures.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '\n':
			return '⏎'
		case '\t':
			return '→'
		}
		return harmless(r)
	}, s)
}

// legible keeps line ends and tabs as they are, and shows what else has no shape.
func legible(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return harmless(r)
	}, s)
}

// harmless is r, or what stands for a character that has no shape.
func harmless(r rune) rune {
	switch {
	case r < ' ':
		return 0x2400 + r
	case r == 0x7f:
		return '␡'
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // they would turn the rest of the line around
		return '�'
	}
	return r
}
