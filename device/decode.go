package device

import "apr/tensor"

// Decode describes the layers of a model for one position of a sequence, or several consecutive ones, whose earlier
// keys and values are in caches. It says everything that the layers compute: a device that lacks one of these features
// refuses the whole by its name.
type Decode struct {
	Layers   []DecodeLayer
	Norm     Tensor // [1, h], of y
	Position int    // of x, the first of several, in its sequence: what rotary embeddings turn by
	Eps      float64
}

// DecodeLayer is one of them. With norm(x, w) = x·w/√(mean(x²)+Eps), left out where w is the zero Tensor:
//
//	q, k, v = QKV·norm(x, AttnNorm) + Bias                          (of a Shared cache q alone; with VIsK v = k)
//	q, k, v = norm(q, QNorm), norm(k, KNorm), VNorm ? norm(v) : v   (over heads, or over rows if so wide)
//	q, k = q, k turned by Rope at Position, q times 1 + QBeta·ln(1+⌊Position/QLength⌋)
//	Cache[Row] = (k, v), unless the cache is Shared
//	x += Residual · norm(O·(attention(q, Cache[First : First+Keys]) · σ(gate, if there is one)) + OBias, AttnPost)
//	x += Residual · norm(Down·glu(GateUp·norm(x, FFNNorm)), FFNPost)   (or of Experts, if there are)
//	x += norm(Project·(gelu_tanh(Gate·x)·Input), Norm)              (of PerLayer, if there is one)
//	x *= OutScale
//
// Norm weights are float32, and factors as they stand: what a family adds to them is in them.
type DecodeLayer struct {
	AttnNorm, AttnPost Tensor // [1, h] or zero
	FFNNorm, FFNPost   Tensor // [1, h] or zero

	Heads, KVHeads, HeadDim int
	QKV                     Weight // [(Heads+2·KVHeads)·HeadDim, h], rows of q, k, v; without those of v with VIsK, of q alone if Shared; see Gate
	Bias                    Tensor // [1, rows of QKV] or zero
	QNorm, KNorm            Tensor // [1, HeadDim], or [1, Heads·HeadDim] and [1, KVHeads·HeadDim], or zero
	VNorm                   bool   // over heads, without a weight
	VIsK                    bool   // v is k before its norm and rotation
	Rope                    *Frequencies
	QBeta                   float64
	QLength                 int
	Gate                    bool   // QKV has 2·HeadDim rows for each head of q, the second half a gate: attention is multiplied by its σ
	Sinks                   Tensor // [1, Heads], as in Attn, or zero

	Cache            Tensor  // [capacity, 2·KVHeads·HeadDim]: a finished key, then its value
	Shared           bool    // an earlier layer has written this position to Cache
	Row, First, Keys int     // the position's row of Cache, and those that it sees, with its own; the next ones see more
	Scale, Cap       float64 // as in Attn

	O     Weight // [h, Heads·HeadDim]
	OBias Tensor // [1, h] or zero

	GateUp, Down Weight // [2f, h], rows of gate, up; [h, f]
	Act          Activation
	Experts      *DecodeExperts // instead of GateUp and Down
	PerLayer     *DecodePerLayer

	Residual float64 // 0: 1
	OutScale float64 // 0: 1
}

// DecodeExperts are the networks of which a layer has Count, in place of one: with z = Router·norm(x, FFNNorm) and
// weights of the Active largest z, ties by the lowest number, what is normed by FFNPost is Σ
// weight·Down·glu(Gate·norm(x, FFNNorm), Up·norm(x, FFNNorm)) over these. Renorm: as in Routing.
type DecodeExperts struct {
	Router         Weight // [Count, h]
	Gate, Up, Down Weight // [Count·f, h], [Count·f, h], [Count·h, f]
	Count, Active  int
	Renorm         bool
}

// DecodePerLayer is the branch of per-layer embeddings.
type DecodePerLayer struct {
	Gate, Project Weight // [p, h]; [h, p]
	Input         Tensor // [1, p], the layer's slice of what the token embeds to
	Norm          Tensor // [1, h]
}

// Decoder is a Stream that may run all layers for one position, or a few, as one operation.
type Decoder interface {
	// Decode runs the layers on x [n, h], which it leaves as it was, and writes y [r, h] = norm(x, d.Norm) of the last r
	// rows after the last one. It keeps the positions' keys and values in the caches. It returns why not, and has done
	// nothing, if the device has no such operation for these weights or so many positions, or lacks a feature of the
	// layers, which the error names.
	Decode(y, x Tensor, d Decode) error
}

// CheckDecode checks a call of Decoder.Decode.
func CheckDecode(y, x Tensor, d Decode) {
	const op = OpDecode
	views(op, y, x, d.Norm)
	need(y.Rows > 0 && y.Rows <= x.Rows, op, "more results than positions")
	shaped(op, 1, x.Cols, d.Norm)
	shaped(op, y.Rows, x.Cols, y)
	typed(op, x.DType, wrongTypes, y)
	need(d.Position >= 0, op, noPositions)
	for i := range d.Layers {
		checkDecodeLayer(&d.Layers[i], x.Cols, x.Rows-1)
	}
}

// checkDecodeLayer checks a layer of a model of h columns for a position and some more.
func checkDecodeLayer(l *DecodeLayer, h, more int) {
	const op = OpDecode
	need(l.HeadDim > 0 && l.HeadDim%2 == 0 && l.KVHeads > 0 && l.Heads > 0 && l.Heads%l.KVHeads == 0, op, "heads do not divide, or are not of even size")
	need(l.QKV != nil && l.O != nil, op, noWeight)
	checkDecodeNetwork(l, h)
	views(op, l.Cache)
	optional(op, l.AttnNorm, l.AttnPost, l.FFNNorm, l.FFNPost, l.Bias, l.QNorm, l.KNorm, l.OBias)
	vectors(op, h, l.AttnNorm, l.AttnPost, l.FFNNorm, l.FFNPost, l.OBias)
	typed(op, tensor.F32, noFloat32, l.AttnNorm, l.AttnPost, l.FFNNorm, l.FFNPost, l.Bias, l.QNorm, l.KNorm, l.OBias)
	q, kv := l.Heads*l.HeadDim, l.KVHeads*l.HeadDim
	rows := q + 2*kv
	switch {
	case l.Shared:
		rows = q
	case l.VIsK:
		rows = q + kv
	}
	if l.Gate {
		rows += q
	}
	need(l.QKV.Rows() == rows && l.QKV.Cols() == h && l.O.Rows() == h && l.O.Cols() == q, op, wrongShapes)
	vectors(op, rows, l.Bias)
	optional(op, l.Sinks)
	vectors(op, l.Heads, l.Sinks)
	typed(op, tensor.F32, noFloat32, l.Sinks)
	need(l.QNorm.IsZero() || l.QNorm.Rows == 1 && (l.QNorm.Cols == l.HeadDim || l.QNorm.Cols == q), op, noVector)
	need(l.KNorm.IsZero() || l.KNorm.Rows == 1 && (l.KNorm.Cols == l.HeadDim || l.KNorm.Cols == kv), op, noVector)
	if l.Rope != nil {
		table(op, l.Rope, l.HeadDim)
	}
	queryScale(op, l.QBeta, l.QLength)
	scores(op, l.Scale, l.Cap)
	activation(op, l.Act)
	need(l.Cache.Cols == 2*kv, op, wrongShapes)
	need(l.Row >= 0 && l.Row+more < l.Cache.Rows, op, "the cache is full")
	need(l.First >= 0 && l.First <= l.Row && l.Row < l.First+l.Keys && l.First+l.Keys+more <= l.Cache.Rows, op,
		"the position sees keys that are not there")
	if p := l.PerLayer; p != nil {
		need(p.Gate != nil && p.Project != nil, op, noWeight)
		views(op, p.Input, p.Norm)
		vectors(op, p.Gate.Rows(), p.Input)
		vectors(op, h, p.Norm)
		need(p.Gate.Cols() == h && p.Project.Rows() == h && p.Project.Cols() == p.Gate.Rows(), op, wrongShapes)
	}
	need(finite(l.Residual) && finite(l.OutScale), op, noFactor)
}

// checkDecodeNetwork checks the network or the experts of a layer.
func checkDecodeNetwork(l *DecodeLayer, h int) {
	const op = OpDecode
	e := l.Experts
	if e == nil {
		need(l.GateUp != nil && l.Down != nil, op, noWeight)
		need(l.GateUp.Rows() == 2*l.Down.Cols() && l.GateUp.Cols() == h && l.Down.Rows() == h, op, wrongShapes)
		return
	}
	need(l.GateUp == nil && l.Down == nil, op, "a network beside experts")
	need(e.Router != nil && e.Gate != nil && e.Up != nil && e.Down != nil, op, noWeight)
	need(e.Active > 0 && e.Active <= e.Count && e.Count <= MaxExperts && e.Router.Rows() == e.Count, op, noRouting)
	f := e.Down.Cols()
	need(e.Gate.Rows() == e.Count*f && e.Up.Rows() == e.Count*f && e.Down.Rows() == e.Count*h, op, noExperts)
	need(e.Router.Cols() == h && e.Gate.Cols() == h && e.Up.Cols() == h, op, wrongShapes)
}

// Finisher is a Stream that may finish the heads of a few positions, of one sequence or several, as one operation.
type Finisher interface {
	// FinishHeads writes q = rotate(norm(x_q, qNorm)) and kv = [rotate(norm(x_k, kNorm)) | x_v] of x = [x_q | x_k |
	// x_v], norms over heads and left out where their weight is the zero Tensor, in the bits of HeadNorm, Rotate and
	// Copy. q may stand in x. Unless rows is the zero Tensor, they are the rows of kv that are written: I32, one a
	// position, distinct; one outside kv is an error of the stream. Unless gate, of q's shape, is the zero Tensor, a
	// gate follows each head of x_q, and is copied there. It reports false, and has done nothing, if the device has no
	// such operation for these.
	FinishHeads(q, gate, kv, rows, x, qNorm, kNorm Tensor, eps float64, r Rotary) bool
}

// CheckFinishHeads checks a call of Finisher.FinishHeads.
func CheckFinishHeads(q, gate, kv, rows, x, qNorm, kNorm Tensor, r Rotary) {
	const op = OpRotate
	views(op, q, kv, x)
	optional(op, gate, qNorm, kNorm)
	floats(op, x)
	typed(op, x.DType, wrongTypes, q, gate, kv)
	typed(op, tensor.F32, noFloat32, qNorm, kNorm)
	CheckRotate(q, r)
	shaped(op, q.Rows, q.Cols, gate)
	if !rows.IsZero() {
		ids(op, rows, x.Rows)
	}
	need(q.Rows == x.Rows && (kv.Rows == x.Rows || !rows.IsZero()) && x.Cols == q.Cols+gate.Cols+kv.Cols, op, wrongShapes)
	need(kv.Cols%(2*r.HeadDim) == 0, op, wrongShapes)
	vectors(op, r.HeadDim, qNorm, kNorm)
}

// Normed is the norm of a row that is still to be made: Y = X·W/√(mean(X²)+Eps), in the bits of RMSNorm.
type Normed struct {
	Y, X, W Tensor // [1, h]
	Eps     float64
}

// NormReader is a Stream on which what reads a norm of one row first may make it. Its methods write n.Y too, for those
// that read it later, and report false, having done nothing, if the device has no such operation for these.
type NormReader interface {
	// NormMatMul is z = n.Y·Wᵀ (+ bias), in the bits of MatMul, with W the rows of all ws, one after the other.
	NormMatMul(z Tensor, n Normed, bias Tensor, ws ...Weight) bool
	// NormMatMulGLU is gu = n.Y·Wᵀ and m = act(g)·u, in the bits of MatMulGLU.
	NormMatMulGLU(m, gu Tensor, n Normed, w Weight, act Activation, keep bool) bool
	// NormRoute is z = n.Y·routerᵀ (+ bias) and the choice of experts by z, in the bits of MatMul and Route.
	NormRoute(w, z Tensor, n Normed, router Weight, bias, scale Tensor, r Routing) bool
}

// check demands a norm of one row.
func (n Normed) check() {
	views(OpRMSNorm, n.Y, n.W)
	CheckRMSNorm(n.Y, Tensor{}, Tensor{}, n.X, Tensor{}, n.W)
	need(n.X.Rows == 1, OpRMSNorm, noVector)
}

// CheckNormMatMul checks a call of NormReader.NormMatMul.
func CheckNormMatMul(z Tensor, n Normed, bias Tensor, ws ...Weight) {
	n.check()
	if len(ws) == 1 {
		CheckMatMul(z, n.Y, ws[0], bias)
		return
	}
	rows := 0
	for _, w := range ws {
		need(w != nil, OpMatMul, noWeight)
		CheckMatMul(z.ColRange(rows, rows+w.Rows()), n.Y, w, Tensor{})
		rows += w.Rows()
	}
	need(rows == z.Cols && bias.IsZero(), OpMatMul, wrongShapes)
}

// CheckNormMatMulGLU checks a call of NormReader.NormMatMulGLU.
func CheckNormMatMulGLU(m, gu Tensor, n Normed, w Weight, act Activation) {
	n.check()
	CheckMatMulGLU(m, gu, n.Y, w, act)
}

// CheckNormRoute checks a call of NormReader.NormRoute.
func CheckNormRoute(w, z Tensor, n Normed, router Weight, bias, scale Tensor, r Routing) {
	CheckNormMatMul(z, n, bias, router)
	CheckRoute(w, z, scale, r)
}
