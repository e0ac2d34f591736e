package main

import (
	"fmt"
	"math"

	"apr/arch"
	"apr/internal/ref"
	"apr/modelfile"
	"apr/tokenizer"
)

// judged is a model that was read from a GGUF file, for the float64 judge.
type judged struct {
	config arch.Config
	net    *ref.Net
	tok    *tokenizer.Tokenizer
}

// judge opens a GGUF file as every command does, and reads all of it.
func judge(path string) (*judged, error) {
	f, err := modelfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.CheckTensors(); err != nil {
		return nil, err
	}
	j := &judged{config: f.Config, net: &ref.Net{Arch: f.Config, Params: map[string]ref.Mat{}}}
	if j.tok, err = f.Tokenizer(); err != nil {
		return nil, err
	}
	for _, s := range arch.Slots(f.Config) {
		v, err := f.ReadFloat32(s.Name)
		if err != nil {
			return nil, err
		}
		j.net.Params[s.Name] = matrix(s, v)
	}
	return j, nil
}

// matrix returns the values of a slot as the judge wants them.
func matrix(s arch.Slot, v []float32) ref.Mat {
	if len(s.Shape) == 1 {
		return ref.Of(1, len(v), v)
	}
	cols := s.Shape[len(s.Shape)-1]
	return ref.Of(len(v)/cols, cols, v)
}

// logProbabilities returns the logarithms of softmax(z), and the largest |z|.
func logProbabilities(z []float64) (out []float64, largest float64) {
	top, sum := math.Inf(-1), 0.0
	for _, x := range z {
		top, largest = max(top, x), max(largest, math.Abs(x))
	}
	for _, x := range z {
		sum += math.Exp(x - top)
	}
	for _, x := range z {
		out = append(out, x-top-math.Log(sum))
	}
	return out, largest
}

// comparison says how far a continuation by llama.cpp is from the judge's.
type comparison struct {
	prompts int
	sameIDs int // prompts of which llama.cpp makes the same ids
	tokens  int
	differ  int     // choices that differ although the margin is no rounding
	close   int     // choices that differ within the margin that rounding may decide
	least   float64 // margin of the best two logits, of the largest |logit|
	largest float64 // difference of a log-probability, of the largest |logit|
}

func (c *comparison) add(o comparison) {
	c.tokens, c.differ, c.close = c.tokens+o.tokens, c.differ+o.differ, c.close+o.close
	c.least, c.largest = min(c.least, o.least), worse(c.largest, o.largest)
}

// worse is the larger of two differences; NaN is the largest.
func worse(a, b float64) float64 {
	if !(b <= a) {
		return b
	}
	return a
}

// rounding is the margin of a choice, of the largest |logit|, below which float32 may choose otherwise.
const rounding = 1e-3

// compare computes prompt and continuation in float64, and compares the choice and the log-probabilities of each position.
func (j *judged) compare(prompt []int, text continuation) (comparison, error) {
	c := comparison{least: math.Inf(1)}
	ids := append([]int{}, prompt...)
	for _, t := range text.tokens {
		ids = append(ids, t.id)
	}
	z := j.net.Forward(ids[:len(ids)-1], 1).Logits
	for i, t := range text.tokens {
		row := z.Row(len(prompt) - 1 + i)
		logs, scale := logProbabilities(row)
		if len(t.logs) != len(logs) {
			return c, fmt.Errorf("%d log-probabilities, want %d", len(t.logs), len(logs))
		}
		best := ref.ArgMax(ref.Of(1, len(row), row))[0]
		second := math.Inf(-1)
		for id, x := range row {
			if id != best {
				second = max(second, x)
			}
		}
		margin := (row[best] - second) / scale
		c.tokens, c.least = c.tokens+1, min(c.least, margin)
		switch {
		case t.id == best:
		case margin < rounding:
			c.close++
		default:
			c.differ++
		}
		for id := range logs {
			if logs[id] > -60 { // smaller ones may be 0 in float32
				c.largest = worse(c.largest, math.Abs(logs[id]-t.logs[id])/scale)
			}
		}
	}
	return c, nil
}

// cpuDiffers returns the largest difference of the logits that the CPU device computes from the file, of the largest, over
// all positions of a prompt.
func (j *judged) cpuDiffers(path string) (float64, error) {
	f, err := modelfile.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	ids := encode(j.tok, prompts[0])
	short := make([]int32, len(ids))
	for i, id := range ids {
		short[i] = int32(id)
	}
	rows, err := cpuLogits(f, short)
	if err != nil {
		return 0, err
	}
	want, difference, largest := j.net.Forward(ids, 1).Logits, 0.0, 0.0
	for i, row := range rows {
		for k, w := range want.Row(i) {
			difference, largest = worse(difference, math.Abs(float64(row[k])-w)), max(largest, math.Abs(w))
		}
	}
	return difference / largest, nil
}
