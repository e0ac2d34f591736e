package modelfile

import (
	"bytes"
	"errors"
	"slices"

	"apr/internal/fault"
	"apr/tensor"
)

const headName, embedName = "lm_head.weight", "model.embed_tokens.weight"

// CheckHead refuses a model that is said to be tied and has a head of its own: one with other values than the embedding, which would
// be dropped without a word. A copy is ignored, and so is a head that holds nothing: 99.9 % zeros, as some writers leave. It
// reads both tensors, in pieces, if there is such a head.
func (c *Container) CheckHead() error {
	config, err := c.ReadConfig()
	if err != nil || !config.Tied {
		return nil
	}
	head, ok := c.File.Tensor(headName)
	embed, there := c.File.Tensor(embedName)
	if !ok || !there || head.Size == 0 {
		return nil
	}
	if slices.Equal(head.Shape, embed.Shape) {
		same, err := c.equal(head, embed)
		if err != nil || same {
			return err
		}
	}
	if zeros, err := c.zeros(head); err != nil || float64(zeros) >= 0.999*float64(head.Elements()) {
		return err
	}
	return fault.In(fault.Invalid, c.Path, "is another matrix than %q, and \"tie_word_embeddings\": true says that it is the same", embedName).
		At("tensor %q", headName).WithHint("state \"tie_word_embeddings\": false in config.json to use it, or remove the tensor").WithID("E-MODEL-008")
}

// equal reports whether two tensors of one shape have the same values, whatever their types.
func (c *Container) equal(a, b tensor.Stored) (bool, error) {
	if a.DType == b.DType && a.Size == b.Size {
		return c.equalBytes(a, b)
	}
	if !a.DType.IsFloat() || !b.DType.IsFloat() {
		return false, nil
	}
	same, other := true, make([]byte, 0)
	err := eachPiece(c.Path, a, func(raw []byte, at int64) error {
		n := len(raw) / a.DType.BlockBytes()
		other = slices.Grow(other[:0], n*b.DType.BlockBytes())[:n*b.DType.BlockBytes()]
		if k, err := b.ReadAt(other, at/int64(a.DType.BlockBytes())*int64(b.DType.BlockBytes())); k < len(other) {
			return unreadable(c.Path, b, err)
		}
		x, y := make([]float32, n), make([]float32, n)
		tensor.Widen(x, raw, a.DType)
		tensor.Widen(y, other, b.DType)
		same = same && slices.Equal(x, y)
		return nil
	})
	return same, err
}

// errDiffers ends a comparison.
var errDiffers = errors.New("differs")

// equalBytes is equal for tensors of one type. It reads up to the first piece that differs.
func (c *Container) equalBytes(a, b tensor.Stored) (bool, error) {
	other := make([]byte, 0)
	err := eachPiece(c.Path, a, func(raw []byte, at int64) error {
		other = slices.Grow(other[:0], len(raw))[:len(raw)]
		if n, err := b.ReadAt(other, at); n < len(other) {
			return unreadable(c.Path, b, err)
		}
		if !bytes.Equal(raw, other) {
			return errDiffers
		}
		return nil
	})
	if err == errDiffers {
		return false, nil
	}
	return err == nil, err
}

// zeros counts the zeros of a tensor of plain values; in quantised blocks zeros cannot be counted.
func (c *Container) zeros(t tensor.Stored) (n int64, err error) {
	if !t.DType.IsFloat() {
		return 0, nil
	}
	err = eachPiece(c.Path, t, func(raw []byte, _ int64) error {
		x := make([]float32, len(raw)/t.DType.BlockBytes())
		tensor.Widen(x, raw, t.DType)
		for _, v := range x {
			if v == 0 {
				n++
			}
		}
		return nil
	})
	return n, err
}

// Verify refuses a model whose files are damaged, as far as their format and their zeros show it, and one with a head
// that nobody would use; see tensor.File, Holes and CheckHead. It reports zeros that may be damage to Warn, once.
func (f *Files) Verify() error {
	if err := f.Container.Verify(); err != nil {
		return err
	}
	lines, err := f.Holes(f.AllowOdd)
	if err != nil {
		return err
	}
	if f.Warn != nil && f.warned != nil && len(lines) > 0 && f.warned.CompareAndSwap(false, true) {
		for _, line := range lines {
			f.Warn(line)
		}
	}
	if f.head == nil {
		return nil
	}
	return f.head()
}
