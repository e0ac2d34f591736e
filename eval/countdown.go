package eval

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"apr/internal/strictjson"
)

// Countdown is a problem that a program can judge: reach Target with Numbers, each used once at most, by + − · and
// divisions without remainder.
type Countdown struct {
	Numbers  []int
	Target   int
	Solution string // one of several, an expression
	Steps    string // the same, an operation at a time: 3*7=21, 21+12=33
}

// heldShare is the share of problems that are held out: one in so many.
const heldShare = 16

// HeldOut reports whether the problem is one of those, chosen by a hash of its target and its numbers in any order,
// that no training text of bench/countdown has and all its questions are.
func (c Countdown) HeldOut() bool {
	numbers := slices.Sorted(slices.Values(c.Numbers))
	h := fnv.New32a()
	fmt.Fprint(h, c.Target, numbers)
	return h.Sum32()%heldShare == 0
}

// Prompt is the problem as a text that a solution and a line end complete.
func (c Countdown) Prompt() string {
	return fmt.Sprintf("countdown %s = %d\n", strings.Trim(fmt.Sprint(c.Numbers), "[]"), c.Target)
}

// NewCountdown returns the i-th problem of a seed: count numbers from 1 to most, and a target from 1 to 10·most that
// some of them reach. It is a function of its arguments.
func NewCountdown(seed uint64, i, count, most int) Countdown {
	rng := rand.New(rand.NewPCG(seed, uint64(i)))
	for {
		c := Countdown{}
		var values []int
		var texts, steps []string
		for range count {
			n := 1 + rng.IntN(most)
			c.Numbers, values, texts = append(c.Numbers, n), append(values, n), append(texts, strconv.Itoa(n))
			steps = append(steps, "")
		}
		for range 1 + rng.IntN(count-1) { // two values become one
			a, b := rng.IntN(len(values)), rng.IntN(len(values)-1)
			if b >= a {
				b++
			}
			x, y := values[a], values[b]
			v, op := x+y, "+"
			switch k := rng.IntN(4); {
			case k == 1 && x > y:
				v, op = x-y, "-"
			case k == 2:
				v, op = x*y, "*"
			case k == 3 && x%y == 0:
				v, op = x/y, "/"
			}
			text := "(" + texts[a] + op + texts[b] + ")"
			step := steps[a] + steps[b] + fmt.Sprintf("%d%s%d=%d, ", x, op, y, v)
			lo, hi := min(a, b), max(a, b)
			values, texts = slices.Delete(values, hi, hi+1), slices.Delete(texts, hi, hi+1)
			steps = slices.Delete(steps, hi, hi+1)
			values[lo], texts[lo], steps[lo] = v, text, step
			c.Target, c.Solution, c.Steps = v, text[1:len(text)-1], strings.TrimSuffix(step, ", ")
		}
		if c.Target >= 1 && c.Target <= 10*most {
			return c
		}
	}
}

// Check says why text is no solution; nil: it is one, an expression or operations one at a time, the last of which
// gives the target.
func (c Countdown) Check(text string) error {
	if strings.Contains(text, "=") {
		return c.checkSteps(text)
	}
	p := &expression{text: strings.ReplaceAll(strings.TrimSpace(text), " ", ""), left: slices.Clone(c.Numbers)}
	v, err := p.sum(0)
	switch {
	case err != nil:
		return err
	case p.text != "":
		return fmt.Errorf("%q is left over", p.text)
	case v != c.Target:
		return fmt.Errorf("it is %d, not %d", v, c.Target)
	}
	return nil
}

// checkSteps judges a op b=v, …: a and b are numbers that are left, which they use up, and v is left then.
func (c Countdown) checkSteps(text string) error {
	left, last := slices.Clone(c.Numbers), 0
	for step := range strings.SplitSeq(strings.ReplaceAll(text, " ", ""), ",") {
		head, told, _ := strings.Cut(step, "=")
		p := &expression{text: head, left: left}
		a, err := p.factor(deepest)
		if err != nil {
			return err
		}
		op := p.take("+-*/")
		if op == 0 {
			return fmt.Errorf("%q is not two numbers and an operation", step)
		}
		b, err := p.factor(deepest)
		if err != nil {
			return err
		}
		if p.text != "" {
			return fmt.Errorf("%q is left over", p.text)
		}
		switch {
		case op == '+':
			last = a + b
		case op == '-':
			last = a - b
		case op == '*':
			last = a * b
		case b == 0 || a%b != 0:
			return fmt.Errorf("%d/%d leaves a remainder", a, b)
		default:
			last = a / b
		}
		if told != strconv.Itoa(last) || last > largest {
			return fmt.Errorf("%q is %d", step, last)
		}
		left = append(p.left, last)
	}
	if last != c.Target {
		return fmt.Errorf("it is %d, not %d", last, c.Target)
	}
	return nil
}

// expression is a text that is being read, with the numbers that may still be used.
type expression struct {
	text string
	left []int
}

// deepest bounds parentheses, and largest values: a model may write anything.
const deepest, largest = 32, 1 << 40

// take removes one of the characters from the front; 0: none is there.
func (p *expression) take(of string) byte {
	if p.text == "" || !strings.Contains(of, p.text[:1]) {
		return 0
	}
	c := p.text[0]
	p.text = p.text[1:]
	return c
}

// sum reads products joined by + and -.
func (p *expression) sum(depth int) (int, error) {
	v, err := p.product(depth)
	for err == nil {
		op := p.take("+-")
		if op == 0 {
			break
		}
		var w int
		if w, err = p.product(depth); op == '-' {
			w = -w
		}
		v += w
	}
	return v, err
}

// product reads factors joined by * and /.
func (p *expression) product(depth int) (int, error) {
	v, err := p.factor(depth)
	for err == nil {
		op := p.take("*/")
		if op == 0 {
			break
		}
		var w int
		if w, err = p.factor(depth); err != nil {
			break
		}
		switch {
		case op == '*':
			v *= w
		case w == 0 || v%w != 0:
			return 0, fmt.Errorf("%d/%d leaves a remainder", v, w)
		default:
			v /= w
		}
		if v > largest || v < -largest {
			return 0, fmt.Errorf("a value is beyond %d", largest)
		}
	}
	return v, err
}

// factor reads a number, which is then used up, or a sum in parentheses.
func (p *expression) factor(depth int) (int, error) {
	if p.take("(") != 0 {
		if depth == deepest {
			return 0, fmt.Errorf("more than %d parentheses", deepest)
		}
		v, err := p.sum(depth + 1)
		if err == nil && p.take(")") == 0 {
			err = fmt.Errorf("a parenthesis is open before %q", p.text)
		}
		return v, err
	}
	n := 0
	for n < len(p.text) && n < 9 && p.text[n] >= '0' && p.text[n] <= '9' {
		n++
	}
	if n == 0 {
		return 0, fmt.Errorf("no number before %q", p.text)
	}
	v, err := strconv.Atoi(p.text[:n])
	if err != nil {
		return 0, err
	}
	p.text = p.text[n:]
	i := slices.Index(p.left, v)
	if i < 0 {
		return 0, fmt.Errorf("%d is not there, or used up", v)
	}
	p.left = slices.Delete(p.left, i, i+1)
	return v, nil
}

// ReadCountdowns reads {"prompt": text, "numbers": [n, …], "target": n} lines as questions whose answers are judged.
func ReadCountdowns(path string) (items []Match, sum string, err error) {
	sum, err = readItems(path, func(line int, f *strictjson.Fields) error {
		f.Only("prompt", "numbers", "target")
		m := Match{Line: line, Prompt: f.Str("prompt")}
		c := Countdown{Target: int(f.Int("target"))}
		for _, n := range strictjson.Field(f, "numbers", strictjson.Value.Uints) {
			c.Numbers = append(c.Numbers, int(min(n, largest)))
		}
		if f.Err() != nil {
			return nil
		}
		if m.Prompt == "" || len(c.Numbers) < 2 {
			return errors.New("a prompt and two numbers at least are needed")
		}
		m.Answers = []string{strconv.Itoa(c.Target)} // what a canary says that always says the same
		m.Judge = func(text string) bool { return c.Check(text) == nil }
		items = append(items, m)
		return nil
	})
	return items, sum, err
}
