package arch

import (
	"math"
	"strings"
)

// Place says where a slot's values are in a file. The file's tensor is a matrix of rows too, seen as [experts, rows,
// cols]; row r of the slot's expert e is row First + Step·p(r) of e, where p is the order of Rows.
type Place struct {
	Name       string // of the file's tensor; "": not stored in this format
	Shape      []int  // of the file's tensor
	Each       int    // experts stored one by one: Name has {e} for the number, Shape is of one
	First      int
	Step       int   // 0 means 1
	Rows       Order // how the file orders rows
	Cols       Order // and columns
	Transposed bool  // the file's matrix is [cols, rows]: each row of the slot is a column
	Values     Values
	Blocks     bool // stored as MXFP4: NAME_blocks, codes of 4 bits, and NAME_scales; see quant.MXFP4FromHF
}

// Values says what a format does to each value.
type Values string

// The changes of values, from slot to file.
const (
	Same    Values = ""
	PlusOne Values = "plus_one" // w+1
	NegExp  Values = "neg_exp"  // −e^w
)

// ToFile returns what the file has for a value of the slot.
func (v Values) ToFile(x float64) float64 {
	switch v {
	case PlusOne:
		return x + 1
	case NegExp:
		return -math.Exp(x)
	}
	return x
}

// FromFile returns the slot's value of the file's.
func (v Values) FromFile(x float64) float64 {
	switch v {
	case PlusOne:
		return x - 1
	case NegExp:
		return math.Log(-x)
	}
	return x
}

// Order is a permutation that a format applies within heads: index x of the slot is index ToFile(x) of the file. The zero
// Order moves nothing.
type Order struct {
	Kind  OrderKind
	Width int // values of a head
	Heads int // value heads (hv)
	Keys  int // key heads (hk)
	From  int // the first index that moves; those before stay
}

// OrderKind names a permutation.
type OrderKind string

// The permutations. Pairs puts the halves (i, i+Width/2) of each head side by side: file row r is slot row
// ⌊r/Width⌋·Width + (r mod 2)·Width/2 + ⌊(r mod Width)/2⌋. ValueHeads groups value heads by the place that they have
// among those of a key head: file head h is slot head (h mod Keys)·(Heads/Keys) + ⌊h/Keys⌋.
const (
	Pairs      OrderKind = "pairs"
	ValueHeads OrderKind = "value_heads"
)

// FromFile returns the slot's index of the file's index.
func (o Order) FromFile(file int) int {
	switch {
	case o.Kind == Pairs:
		r := file % o.Width
		return file - r + r%2*(o.Width/2) + r/2
	case o.Kind == ValueHeads && file >= o.From:
		x := file - o.From
		h := x / o.Width
		return o.From + (h%o.Keys*(o.Heads/o.Keys)+h/o.Keys)*o.Width + x%o.Width
	}
	return file
}

// ToFile returns the file's index of the slot's.
func (o Order) ToFile(slot int) int {
	switch {
	case o.Kind == Pairs:
		r := slot % o.Width
		half := o.Width / 2
		return slot - r + r%half*2 + r/half
	case o.Kind == ValueHeads && slot >= o.From:
		x := slot - o.From
		h, group := x/o.Width, o.Heads/o.Keys
		return o.From + (h%group*o.Keys+h/group)*o.Width + x%o.Width
	}
	return slot
}

// Row returns the file's row of row r of the slot.
func (p Place) Row(r int) int { return p.First + max(p.Step, 1)*p.Rows.ToFile(r) }

// Alone reports whether the file's tensor holds nothing but the slot, row for row and value for value, in this order.
func (s Slot) Alone(p Place) bool {
	experts, rows, cols := s.Dims()
	return p.Rows == Order{} && p.moves() && p.First == 0 && p.Step <= 1 && p.Each == 0 && product(p.Shape) == experts*rows*cols
}

// Stacked is where transformers has the slot while it computes, and with it the slot's gradient: as Hugging Face's files have
// it, but experts that these have one by one all in one tensor, gate above up.
func (s Slot) Stacked() Place {
	if s.HF.Each == 0 {
		return s.HF
	}
	out, in, name := s.Shape[1], s.Shape[2], strings.TrimSuffix(s.Name, ".weight")
	p := Place{Name: name, Shape: []int{s.HF.Each, out, in}}
	if s.Role != ExpertDown {
		p.Name, p.Shape[1] = strings.NewReplacer("gate_proj", "gate_up_proj", "up_proj", "gate_up_proj").Replace(name), 2*out
	}
	if s.Role == ExpertUp {
		p.First = out
	}
	return p
}

// moves reports whether whole rows of values move.
func (p Place) moves() bool { return !p.Transposed && p.Cols == Order{} && p.Values == Same }

// MovesBlocks reports whether rows that are quantised in blocks of the given number of values can be copied byte for byte
// between slot and file: whole rows move, or runs of columns that hold whole blocks.
func (p Place) MovesBlocks(block int) bool {
	if p.Transposed || p.Values != Same {
		return false
	}
	return p.Cols == Order{} || p.Cols.Width%block == 0
}

// Index returns where the file has value (row r, column c) of expert e: which of the Each tensors, and the index in it.
func (s Slot) Index(p Place, e, r, c int) (file, index int) {
	experts, _, cols := s.Dims()
	total := product(p.Shape) // of one file tensor
	row, col := p.Row(r), p.Cols.ToFile(c)
	base := 0
	if p.Each > 0 {
		file = e
	} else {
		total /= experts
		base = e * total
	}
	if p.Transposed {
		return file, base + col*(total/cols) + row
	}
	return file, base + row*cols + col
}

// Columns returns how far each column is behind a row's first in the file, for loops over whole matrices:
// Index(p, e, r, c) = Index(p, e, r, 0) + Columns(p)[c], for every expert e and row r.
func (s Slot) Columns(p Place) []int {
	_, _, cols := s.Dims()
	_, first := s.Index(p, 0, 0, 0)
	steps := make([]int, cols)
	for c := range steps {
		_, at := s.Index(p, 0, 0, c)
		steps[c] = at - first
	}
	return steps
}

func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Number is a type of values that Gather and Scatter move.
type Number interface{ ~float32 | ~float64 }

// Gather returns the values of a slot from the file tensors of its place, one for each of Each, else one.
func Gather[T Number](s Slot, p Place, stored [][]T) []T {
	out := make([]T, s.Elements())
	s.move(p, func(slot, file, index int) { out[slot] = T(p.Values.FromFile(float64(stored[file][index]))) })
	return out
}

// Scatter writes the values of a slot into the file tensors of its place, which have their full length; other slots may
// share them.
func Scatter[T Number](s Slot, p Place, values []T, stored [][]T) {
	s.move(p, func(slot, file, index int) { stored[file][index] = T(p.Values.ToFile(float64(values[slot]))) })
}

// move calls f for every value of s.
func (s Slot) move(p Place, f func(slot, file, index int)) {
	experts, rows, _ := s.Dims()
	columns := s.Columns(p)
	at := 0
	for e := range experts {
		for r := range rows {
			file, first := s.Index(p, e, r, 0)
			for _, c := range columns {
				f(at, file, first+c)
				at++
			}
		}
	}
}
