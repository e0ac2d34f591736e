package device

import "apr/tensor"

// BlockRows are rows of a parameter that a file holds in one type, of blocks or of floats.
type BlockRows struct {
	DType tensor.DType
	Rows  int
}

// Bytes returns the size of the rows, of cols values each, which are whole blocks.
func (b BlockRows) Bytes(cols int) int64 { return int64(b.Rows) * b.DType.RowBytes(cols) }

// Quantizer is a Stream whose device trains a matrix as a file of blocks will hold it (quantisation-aware training).
// Products and gathers read, of a parameter with ParamSpec.Blocks, the values Q(w) that the blocks of w = Value decode
// to, rounded to the type in which the device keeps matrices. The gradient of these values is taken for that of w (the
// straight-through estimator, Bengio et al. 2013, arXiv:1308.3432): Grad is that over Q(w), AdamW moves w. A device
// whose streams are none has [Quantizes] among its Lacks.
type Quantizer interface {
	// Quantize makes Stored of the parameters that have it from Value, as quant.Quantize does (search) or as
	// quant.Round does, under the scales that Stored has; then Rounded from Stored. It leaves all untouched if the
	// verdict refused the step. A value that no block can hold is an error of the stream.
	Quantize(params []*Param, search bool)
	// StoredBytes copies p.Stored to dst, which has its size, and waits; an earlier error of the stream is returned.
	StoredBytes(dst []byte, p *Param) error
	// SetStored copies src to p.Stored, and makes Rounded from it.
	SetStored(p *Param, src []byte)
	// RefreshRead makes p.Weight agree with p.Rounded after an Upload to Rounded; Value and Stored stay.
	RefreshRead(p *Param)
}

// storedBytes is the size of Param.Stored.
func (s ParamSpec) storedBytes() (n int64) {
	for _, b := range s.Blocks {
		n += b.Bytes(s.Cols)
	}
	return n
}

// checkBlocks demands rows of whole blocks, as many as the parameter has.
func (s ParamSpec) checkBlocks() {
	rows := 0
	for _, b := range s.Blocks {
		rows += b.Rows
		need(b.DType.IsFloat() || b.DType.IsQuantized() && b.DType != tensor.AprQ8, OpQuantize, "a type is neither of blocks nor of floats")
		need(s.Cols%b.DType.BlockLen() == 0, OpQuantize, "rows are not whole blocks")
	}
	need(rows == s.Rows, OpQuantize, "blocks have another number of rows than the parameter")
}

// CheckQuantize checks a call of Quantizer.Quantize.
func CheckQuantize(params []*Param) {
	for _, p := range params {
		if len(p.Blocks) > 0 {
			views(OpQuantize, p.Stored)
			param(OpQuantize, p, p.Value, p.Rounded)
		}
	}
}

// CheckRefreshRead checks a call of Quantizer.RefreshRead.
func CheckRefreshRead(p *Param) {
	need(len(p.Blocks) > 0, OpQuantize, noBlocks)
	param(OpQuantize, p, p.Rounded)
}

const noBlocks = "a parameter has no blocks"

// CheckStoredBytes checks a call of Quantizer.StoredBytes or SetStored with n bytes.
func CheckStoredBytes(p *Param, n int) {
	need(len(p.Blocks) > 0, OpQuantize, noBlocks)
	views(OpQuantize, p.Stored)
	need(int64(n) == p.storedBytes(), OpQuantize, noLength)
}
