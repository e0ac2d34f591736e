package device

import "apr/tensor"

// Pager is a Stream that attends for one further position of each of many sequences at a time, straight from the pages
// in which their keys and values lie. A device whose streams are none has Pages in its Lacks; the keys of one sequence
// after the other are then gathered.
type Pager interface {
	// PutRows copies rows, dst[rows[i]] = src[i], and leaves the others of dst as they are; rows I32, distinct. A row
	// outside dst is an error of the stream.
	PutRows(dst, src, rows Tensor)
	// AttendPages: with the keys k_j = k[Table[First[r]+j]] and the values v_j = v[…], j < Keys[r], of each row r
	//
	//	o[r] = Σ_j p_j·v_j,  p = softmax(cap(Scale·q[r]·k_j), sink)
	//
	// per head, query head h reading kv head ⌊h·KVHeads/Heads⌋; 0 where there are no keys. q, o [n, Heads·d]; k, v
	// [.., KVHeads·d]. The bits of a row depend on its own query and keys alone.
	AttendPages(o, q, k, v Tensor, a Paged)
}

// Paged describes attention of one query a row, which sees all of the keys that it is given.
type Paged struct {
	Heads, KVHeads, HeadDim int
	Scale, Cap              float64 // as in Attn
	Sinks                   Tensor  // as in Attn
	Table                   Tensor  // I32 [m,1]: rows of k and v
	First, Keys             Tensor  // I32 [n,1]: the entry of Table that is a row's first key, and how many keys it has
	// Most is what no number of keys is above. An entry, a row of k, or a number beyond what there is is an error of the
	// stream.
	Most int
}

// Attn returns the same for keys without pages: Batch rows of one query each.
func (a Paged) Attn(batch, keys int) Attn {
	return Attn{
		Batch: batch, QLen: 1, KLen: keys, QOffset: keys - 1, KStride: keys, Heads: a.Heads, KVHeads: a.KVHeads,
		HeadDim: a.HeadDim, Scale: a.Scale, Cap: a.Cap, Sinks: a.Sinks,
	}
}

// CheckPutRows checks a call of Pager.PutRows, but for the values of rows.
func CheckPutRows(dst, src, rows Tensor) {
	const op = OpPutRows
	views(op, dst, src)
	floats(op, dst)
	typed(op, dst.DType, wrongTypes, src)
	need(dst.Cols == src.Cols, op, wrongShapes)
	ids(op, rows, src.Rows)
}

// CheckAttendPages checks a call of Pager.AttendPages, but for the values of Table, First and Keys.
func CheckAttendPages(o, q, k, v Tensor, a Paged) {
	const op = OpAttendPages
	views(op, o, q, k, v, a.Table)
	need(a.Most > 0 && k.Rows > 0, op, "a row sees no key")
	heads(op, a.Heads, a.KVHeads, a.HeadDim)
	scores(op, a.Scale, a.Cap)
	floats(op, q)
	typed(op, q.DType, wrongTypes, o, k, v)
	shaped(op, q.Rows, a.Heads*a.HeadDim, q, o)
	need(k.Rows == v.Rows && k.Cols == a.KVHeads*a.HeadDim && v.Cols == k.Cols, op, wrongShapes)
	ids(op, a.Table, a.Table.Rows*a.Table.Cols)
	ids(op, a.First, q.Rows)
	ids(op, a.Keys, q.Rows)
	optional(op, a.Sinks)
	typed(op, tensor.F32, noFloat32, a.Sinks)
	vectors(op, a.Heads, a.Sinks)
}
