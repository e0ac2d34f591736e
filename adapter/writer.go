package adapter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/bits"
	"strings"

	"apr/arch"
	"apr/modelfile"
)

// A model names itself in the text that it writes as NORMS.SHAPE.ANGLES: its Identity; a hash of the shapes of its
// layers; and bits that say which rows of its embedding are near to each other. Scales that move from norms into
// matrices (AWQ, SmoothQuant) and orders and rotations of hidden columns change NORMS alone; codes of few bits change
// some bits of ANGLES. Text that was written before names NORMS alone.

// Writer returns the name of a model in the text that it writes.
func Writer(f *modelfile.Files) (string, error) {
	norms, err := Identity(f)
	if err != nil {
		return "", err
	}
	angles, err := anglesOf(f)
	return norms + "." + shapeOf(f.Config) + "." + hex.EncodeToString(angles[:]), err
}

// shapeOf is a hash of the shapes of a model's layers, without biases, which may be zeros.
func shapeOf(c arch.Config) string {
	h := sha256.New()
	for _, s := range arch.Slots(c) {
		if s.Role != arch.Embedding && s.Role != arch.Head && !s.Bias {
			fmt.Fprintf(h, "%s %v\n", s.Name, s.Shape)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// angleRows are the rows of the embedding that ANGLES is of: of ids spread over the first power of two of the
// vocabulary, so that rows that a copy has besides change nothing.
const angleRows = 64

// anglesOf returns the bits cos(x[i], x[i+s]) > cos(x[i], x[i+31-s]) of 64 rows x, for s from 1 to 4: no two of the 512
// angles are one.
func anglesOf(f *modelfile.Files) (out [4 * angleRows / 8]byte, err error) {
	rows, err := modelfile.EmbeddingRows(f, angleRows, 1<<(bits.Len(uint(f.Config.Vocab))-1))
	if err != nil {
		return out, err
	}
	row := func(i int) [][]float32 { return rows[i%len(rows) : i%len(rows)+1] }
	for i := range angleRows {
		for s := 1; s <= 4; s++ {
			if modelfile.MeanCosine(row(i), row(i+s)) > modelfile.MeanCosine(row(i), row(i+31-s)) {
				n := 4*i + s - 1
				out[n/8] |= 1 << (n % 8)
			}
		}
	}
	return out, nil
}

// likeAngles is how many of the 256 bits of ANGLES may differ between a model and its copy. On gosrc, codes of 4 bits
// change 6 to 10, of 2 bits 22; another order of the hidden columns in codes of 4 bits 8. Two models of one shape
// that were trained on one text from other numbers differ in 71, since tokens are alike in both; other models in 110
// to 145.
const likeAngles = 32

// Likeness is what the names of two writers say of the models.
type Likeness int

const (
	// Strangers have neither norms nor embeddings in common.
	Strangers Likeness = iota
	// Relatives have equal shapes and one embedding: a copy in other scales or another order, or a fine-tuned one.
	Relatives
	// OneModel has equal norms.
	OneModel
)

// CompareWriters says what two names of writers, as text or the files of models have them, say of the models.
func CompareWriters(a, b string) Likeness {
	normsA, restA, _ := strings.Cut(a, ".")
	normsB, restB, _ := strings.Cut(b, ".")
	if normsA == normsB {
		return OneModel
	}
	shapeA, anglesA, okA := strings.Cut(restA, ".")
	shapeB, anglesB, okB := strings.Cut(restB, ".")
	if !okA || !okB || shapeA != shapeB {
		return Strangers
	}
	x, errA := hex.DecodeString(anglesA)
	y, errB := hex.DecodeString(anglesB)
	if errA != nil || errB != nil || len(x) != len(y) || len(x) == 0 {
		return Strangers
	}
	differ := 0
	for i := range x {
		differ += bits.OnesCount8(x[i] ^ y[i])
	}
	if differ <= likeAngles {
		return Relatives
	}
	return Strangers
}
