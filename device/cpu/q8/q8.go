// Package q8 multiplies matrices of quantised blocks with activations of 16 bits, in sums of 8-bit products.
//
// Each row of activations is cut into blocks of 256 (of 32 for Q8_0, Q5_0, Q4_0 and MXFP4), as llama.cpp does it, but a block
// becomes two of 8 bits: with d = max|x|/127
//
//	x ≈ d·q + (d/254)·r,  q = round(x/d),  r = round((x − d·q)·254/d)
//
// so that an element is off by at most max|x|/64516. A product with a block of weights w = s·c − m is then, for each of
// the halves,
//
//	Σ w·x ≈ d·(s·Σ c·q − m·Σ q)
//
// whose sums are of small integers and exact. For one row of activations, which is generating, the time is that of
// reading the weights; for many it is that of 8-bit dot products, four to a float32 one.
//
// When a matrix is loaded its blocks are put in another order (Pack): 16 rows side by side, four columns of each in
// 32 bits, so that one vector instruction multiplies for 16 outputs and no sum crosses lanes. See Matrix.
//
// Caveats. The results are not those of float32 products to the last bits, nor does their gradient exist: this is for
// generating text, not for training or comparing models. Every output is summed in one order, of separately rounded
// operations, so that plain Go, AVX2, AVX-512 with VNNI and NEON give the same bits, and a row has the same bits in any
// batch and with any number of workers. An activation that is not finite makes all outputs of its row NaN.
package q8

import (
	"apr/device/cpu/par"
	"apr/internal/fault"
	"apr/tensor"
)

const (
	lanes    = 16  // rows of a panel
	chunk    = 256 // columns that are multiplied at a time
	perWord  = 4   // columns of a row side by side
	vecBytes = lanes * perWord
)

// Matrix is a matrix of quantised blocks [rows, cols] = [out, in], in panels of 16 rows. A panel is a sequence of
// chunks of 256 columns (the last may be shorter for types of 32-blocks), each with
//
//	codes   vectors of 64 bytes: byte 4·lane + i of vector v is column 4v+i of row lane. With 4 bits, vectors 2p and
//	        2p+1 are the low and the high nibbles of 64 bytes. With 6 bits, vectors 4p … 4p+3 are two such 64 bytes,
//	        then 64 bytes that hold the two upper bits of each, those of vector 4p+u from bit 2u on.
//	scales  of the K types int8 [groups/2][16][2], and the minima of Q4_K and Q5_K like them
//	d       float16 [16], and dmin of Q4_K and Q5_K; of 32-blocks [groups][16]; of MXFP4 exponents, uint8 [groups][16]
//
// Rows beyond the matrix are zero.
type Matrix struct {
	rows, cols int
	f          *format
	panelBytes int
	data       []byte
}

// CanPack reports whether Pack takes matrices of this type and number of columns.
func CanPack(d tensor.DType, cols int) bool {
	f := formats[d]
	return f != nil && cols > 0 && cols%f.block == 0
}

// PackedBytes returns the memory of a packed matrix; CanPack must be true.
func PackedBytes(d tensor.DType, rows, cols int) int64 {
	return int64(panels(rows)) * int64(formats[d].panelBytes(cols))
}

func panels(rows int) int { return (rows + lanes - 1) / lanes }

// Pack reads a matrix of blocks, rows of whole blocks, and packs it into memory on all workers: read fills dst with the stored rows
// [lo, hi), in ascending order. CanPack must be true. The error is that of read.
func Pack(memory *Memory, pool *par.Pool, d tensor.DType, rows, cols int, read func(dst []byte, lo, hi int) error) (*Matrix, error) {
	if !CanPack(d, cols) {
		panic("q8: cannot pack " + d.String())
	}
	f := formats[d]
	m := &Matrix{rows: rows, cols: cols, f: f, panelBytes: f.panelBytes(cols)}
	size := PackedBytes(d, rows, cols)
	if int64(int(size)) != size || size < 0 {
		return nil, fault.New(fault.Memory, "a matrix of %d×%d does not fit an address space", rows, cols).WithID("E-CPU-007")
	}
	m.data = memory.take(int(size))[:size]
	rowBytes := cols / f.block * f.blockBytes
	step := lanes * max(1, readBytes/max(1, lanes*rowBytes))
	buf := make([]byte, min(step, rows)*rowBytes)
	for lo := 0; lo < rows; lo += step {
		hi := min(rows, lo+step)
		part := buf[:(hi-lo)*rowBytes]
		if err := read(part, lo, hi); err != nil {
			return nil, err
		}
		pool.Split(hi-lo, lanes, func(_, from, to int) {
			for r := from; r < to; r++ {
				m.packRow(lo+r, part[r*rowBytes:][:rowBytes])
			}
		})
	}
	return m, nil
}

// readBytes bounds the stored bytes that are in memory beside a matrix while it is packed.
const readBytes = 1 << 20

// Rows returns the number of outputs.
func (m *Matrix) Rows() int { return m.rows }

// Bytes returns the memory that the matrix occupies.
func (m *Matrix) Bytes() int64 { return int64(len(m.data)) }

// chunkAt returns chunk c of a panel, and its number of columns.
func (m *Matrix) chunkAt(panel, c int) (data []byte, width int) {
	width = min(chunk, m.cols-c*chunk)
	return m.data[panel*m.panelBytes+c*m.f.chunkBytes(chunk):][:m.f.chunkBytes(width)], width
}

// chunks returns how many chunks a row of cols columns has.
func chunks(cols int) int { return (cols + chunk - 1) / chunk }
