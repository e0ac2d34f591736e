package eval

import "math"

// minBlocks is how many blocks a text is cut into at least, if it has as many windows.
const minBlocks = 32

// EnoughBlocks is how many blocks a difference needs to be told. With so many the interval is 9 % wider than if the
// spread of the blocks were known (2.13 standard errors, not 1.96) and its width itself is known to 18 %; with 4 blocks
// it is 62 % wider and its width known to 41 %: four numbers that happen to lie close together then pass for a sure
// difference. See corpus.EnoughWindows.
const EnoughBlocks = 16

// block is a few neighbouring windows of the text: how many of their targets were scored, and the sum of the
// cross-entropies there. Windows of one block may depend on each other; blocks are taken to be independent.
type block struct {
	targets int64
	ce      float64
}

// Estimate is a mean per target with what is known of its error.
type Estimate struct {
	Mean          float64
	StandardError float64 // NaN with fewer than two blocks
	Blocks        int     // of neighbouring windows, by whose spread the error is judged
}

// Nats returns the mean cross-entropy as an estimate of the one on more text of the same kind.
func (s Scores) Nats() Estimate { return estimate(s.blocks) }

// Margin returns by how many nats per token s is better than o, scored on the same targets: block by block, so that
// what makes a block hard for both does not count as error. Scores of different targets have no margin: NaN.
func (s Scores) Margin(o Scores) Estimate {
	if len(s.blocks) != len(o.blocks) {
		return Estimate{Mean: math.NaN(), StandardError: math.NaN()}
	}
	diff := make([]block, len(s.blocks))
	for i, b := range s.blocks {
		if b.targets != o.blocks[i].targets {
			return Estimate{Mean: math.NaN(), StandardError: math.NaN()}
		}
		diff[i] = block{b.targets, o.blocks[i].ce - b.ce}
	}
	return estimate(diff)
}

// estimate is the ratio of the sums m = Σy/Σn over B blocks, and its standard error (Cochran 1977, Sampling
// Techniques, section 6.3):
//
//	√( B/(B−1) · Σ (yᵢ − m·nᵢ)² ) / Σn
func estimate(blocks []block) Estimate {
	var n, sum float64
	for _, b := range blocks {
		n, sum = n+float64(b.targets), sum+b.ce
	}
	e := Estimate{Mean: sum / n, StandardError: math.NaN(), Blocks: len(blocks)}
	if len(blocks) < 2 {
		return e
	}
	var squares float64
	for _, b := range blocks {
		off := b.ce - e.Mean*float64(b.targets)
		squares += off * off
	}
	count := float64(len(blocks))
	e.StandardError = math.Sqrt(count/(count-1)*squares) / n
	return e
}

// Interval returns the 95 % interval of the mean, by Student's t with one degree of freedom less than there are blocks.
// It speaks of the text: on other text of the same kind the same models would differ by about as much. It does not
// say what another seed would have trained.
func (e Estimate) Interval() (low, high float64) {
	half := studentT(e.Blocks-1) * e.StandardError
	return e.Mean - half, e.Mean + half
}

// studentT is the 0.975 quantile of Student's t with df degrees of freedom: a table, then the Cornish-Fisher expansion
// (Abramowitz and Stegun 26.7.5), which is right to four digits there.
func studentT(df int) float64 {
	table := []float64{math.NaN(), 12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622}
	if df < 1 {
		return math.NaN()
	}
	if df < len(table) {
		return table[df]
	}
	const z = 1.959963984540054
	const z3, z5, z7 = z * z * z, z * z * z * z * z, z * z * z * z * z * z * z
	v := float64(df)
	return z + (z3+z)/(4*v) + (5*z5+16*z3+3*z)/(96*v*v) + (3*z7+19*z5+17*z3-15*z)/(384*v*v*v)
}
