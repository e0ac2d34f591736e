package gemm

// blockK is how many terms of a sum one pass takes: a packed panel of B (32×512 float32, 64 KiB) then comes from the
// second-level cache at less than 10 bytes a cycle, and k ≤ 512 needs C only once. It is part of the summation order.
const blockK = 512

// operand is one factor as lines (rows of op(A), columns of op(B)) of k elements: (line, p) is data[line·ls+p·ps].
// One of the strides is 1. A decoded operand has rows instead of data.
type operand struct {
	data   []float32
	ls, ps int
	lines  int
	rows   Rows
}

// byRow is a factor whose lines are contiguous: stored [lines×k].
func byRow(name string, data []float32, ld, lines, k int) operand {
	need(name, len(data), ld, lines, k)
	return operand{data: data, ls: ld, ps: 1, lines: lines}
}

// byColumn is a factor whose lines are strided: stored [k×lines].
func byColumn(name string, data []float32, ld, lines, k int) operand {
	need(name, len(data), ld, k, lines)
	return operand{data: data, ls: 1, ps: ld, lines: lines}
}

// pack writes the lines from line on, over p in [lo, hi), to dst as [hi-lo][width]; width is a multiple of the lanes.
// Lines beyond the last are zeros.
func (o *operand) pack(kn *kernels, s *scratch, dst []float32, width, line, lo, hi int) {
	for g := 0; g < width; g += kn.lanes {
		have := min(o.lines-line-g, kn.lanes)
		if o.rows == nil {
			o.packGroup(kn, dst[g:], width, line+g, have, lo, hi)
			continue
		}
		k := hi - lo
		o.decode(s, line+g, have, lo, hi)
		decoded := operand{data: s.decoded, ls: k, ps: 1}
		decoded.packGroup(kn, dst[g:], width, 0, have, 0, k)
	}
}

// decode writes lines, over p in [lo, hi), to s.decoded as [lines][hi-lo].
func (o *operand) decode(s *scratch, line, lines, lo, hi int) {
	k := hi - lo
	for i := range lines {
		o.rows.DecodeRow(s.decoded[i*k:(i+1)*k], line+i, lo, hi)
	}
}

// packGroup packs one group of lanes lines, of which have exist.
func (o *operand) packGroup(kn *kernels, dst []float32, width, line, have, lo, hi int) {
	done := lo // what the vector kernels have packed
	switch {
	case have < kn.lanes:
	case o.ps == 1:
		blocks := (hi - lo) / 4
		done += 4 * blocks
		if blocks > 0 {
			kn.transpose(blocks, &o.data[line*o.ls+lo], o.ls, &dst[0], width)
		}
	default:
		done = hi
		kn.copy(hi-lo, &o.data[line+lo*o.ps], o.ps, &dst[0], width)
	}
	for p := done; p < hi; p++ {
		out := dst[(p-lo)*width:][:kn.lanes]
		for i := range out {
			if i < have {
				out[i] = o.data[(line+i)*o.ls+p*o.ps]
			} else {
				out[i] = 0
			}
		}
	}
}

// scratch is the memory of one worker.
type scratch struct {
	panel   []float32 // [blockK][nr] a packed panel of B
	decoded []float32 // [lanes][blockK] rows before packing
	tile    []float32 // [mr][nr] a tile that does not fit in C
}

// fit makes the buffers large enough for kn.
func (s *scratch) fit(kn *kernels) {
	s.panel = grow(s.panel, blockK*kn.nr)
	s.decoded = grow(s.decoded, blockK*kn.lanes)
	s.tile = grow(s.tile, kn.mr*kn.nr)
}

// grow returns a slice of n elements that begins at a cache line, the given one if it is large enough.
func grow(s []float32, n int) []float32 {
	if cap(s) >= n {
		return s[:n]
	}
	const line = 16
	s = make([]float32, n+line)
	return s[misaligned(&s[0], line):][:n:n]
}
