package distill

import (
	"math"

	"apr/corpus"
	"apr/device"
	"apr/tensor"
)

// temperedLogits is how many logits of each model tempered downloads, at least those of temperedRows positions.
const (
	temperedLogits = 4 << 20
	temperedRows   = 8
)

// temperatures is how far the logarithm of the scale is looked for, in both directions: 2^12.
const temperatures = 12 * math.Ln2

// temperedReading is how the student stands to the teacher with its logits divided by the temperature at which
// KL(teacher‖student) is least: kl and entropy are means over so many positions, in nats. Without positions nothing
// was read, or too few ids agree.
type temperedReading struct {
	kl, entropy, temperature float64
	positions                int
}

// tempered reads the first targets of b. A copy whose last norm or head is multiplied by a number agrees with the
// teacher at that temperature, and nowhere else. It changes nothing.
func (t *Trainer) tempered(b corpus.Batch) (r temperedReading, err error) {
	student, teacher, err := t.logits(b, max(temperedLogits/t.Loss.Vocab, temperedRows))
	if err != nil {
		return r, err
	}
	return fitTemperature(student, teacher, t.Loss.Vocab), nil
}

// fitTemperature reads the logits of both models, [n, v] each.
func fitTemperature(student, teacher []float32, v int) (r temperedReading) {
	if !(alikeIDs(student, teacher, v) >= agreeingIDs) {
		return r // no temperature changes the largest logit
	}
	r.positions = len(student) / v
	rows := float64(r.positions)
	var expected float64 // Σ p·z of the student's logits, which grows with their scale
	for at := 0; at < len(student); at += v {
		p, entropy := softmax(teacher[at : at+v])
		r.entropy += entropy / rows
		for i, x := range p {
			expected += x * float64(student[at+i]) / rows
		}
	}
	tops := make([]float64, r.positions)
	for i := range tops {
		row := student[i*v : (i+1)*v]
		tops[i] = float64(row[largest(row)])
	}
	// In the scale s of logits, KL(s) = mean logΣexp(s·z) − s·Σ p·z − H is convex, and its derivative is the mean of z
	// under softmax(s·z) less Σ p·z.
	low, high := -temperatures, temperatures
	for high-low > 0.01 {
		middle := (low + high) / 2
		if _, mean := scaled(student, tops, math.Exp(middle)); mean < expected {
			low = middle
		} else {
			high = middle
		}
	}
	scale := math.Exp((low + high) / 2)
	total, _ := scaled(student, tops, scale)
	r.kl, r.temperature = total-scale*expected-r.entropy, 1/scale
	return r
}

// scaled returns the means of logΣexp(s·z) and of z under softmax(s·z) over the rows of logits z, whose largest are tops.
func scaled(z []float32, tops []float64, s float64) (total, mean float64) {
	rows, v := float64(len(tops)), len(z)/len(tops)
	for i, top := range tops {
		var sum, below float64
		for _, x := range z[i*v : (i+1)*v] {
			d := float64(x) - top
			e := math.Exp(s * d)
			sum, below = sum+e, below+e*d
		}
		total, mean = total+(s*top+math.Log(sum))/rows, mean+(top+below/sum)/rows
	}
	return total, mean
}

// alikeIDs returns the part of positions at which the largest logits of both models, [n, v] each, are those of one id.
func alikeIDs(a, b []float32, v int) float64 {
	same := 0
	for at := 0; at < len(a); at += v {
		if largest(a[at:at+v]) == largest(b[at:at+v]) {
			same++
		}
	}
	return float64(same) / float64(max(1, len(a)/v))
}

// largest returns the index of the largest value, the lowest of equal ones.
func largest(z []float32) (best int) {
	for i, x := range z {
		if x > z[best] {
			best = i
		}
	}
	return best
}

// logits computes the logits of both models, capped where theirs are, for the first n targets of b at most, of one
// micro-batch: [n, Vocab] each.
func (t *Trainer) logits(b corpus.Batch, n int) (student, teacher []float32, err error) {
	s := t.stream
	t.batch.Load(s, b, t.MicroRows)
	t.Teacher.Begin(s, t.batch)
	defer t.Teacher.End(s)
	for _, m := range t.batch.Micro {
		if m.Hi == m.Lo {
			continue
		}
		saved := t.Student.Forward(s, m.Tokens, t.Recompute)
		defer saved.ReleaseTo(s)
		x := saved.Hidden
		if !m.Keep.IsZero() {
			x = s.Temp("hidden.kept", device.Activations, x.DType, m.Hi-m.Lo, x.Cols)
			defer s.Release(x)
			s.Gather(x, saved.Hidden, m.Keep)
		}
		n = min(n, m.Hi-m.Lo, t.Loss.ChunkRows)
		v := t.Loss.Vocab
		read := func(name string, fill func(z device.Tensor)) ([]float32, error) {
			z := s.Temp(name, device.Logits, tensor.F32, n, rowLength(v)).ColRange(0, v)
			defer s.Release(z)
			fill(z)
			host := make([]float32, n*v)
			return host, s.Download(host, z)
		}
		if student, err = read("logits.student", func(z device.Tensor) { t.Student.Logits(s, z, x.RowRange(0, n)) }); err == nil {
			teacher, err = read("logits.teacher", func(z device.Tensor) { t.Teacher.Logits(s, m.Lo, m.Lo+n, z) })
		}
		return student, teacher, err
	}
	return nil, nil, nil
}

// softmax returns the probabilities of logits, and their entropy in nats.
func softmax(z []float32) (p []float64, entropy float64) {
	total := logSumExp(z)
	p = make([]float64, len(z))
	for i, x := range z {
		log := float64(x) - total
		p[i] = math.Exp(log)
		entropy -= p[i] * log
	}
	return p, entropy
}

// logSumExp returns log Σ exp(z).
func logSumExp(z []float32) float64 {
	most, sum := math.Inf(-1), 0.0
	for _, x := range z {
		most = math.Max(most, float64(x))
	}
	for _, x := range z {
		sum += math.Exp(float64(x) - most)
	}
	return most + math.Log(sum)
}
