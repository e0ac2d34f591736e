package arch

import "apr/tensor"

// Config describes a decoder model. Sizes are counts, not bytes.
type Config struct {
	Family       string  `json:"family"` // model_type of Hugging Face, such as "qwen3"
	Hidden       int     `json:"hidden"`
	Vocab        int     `json:"vocab"` // rows of the embedding; real ids may be fewer
	MaxPositions int     `json:"max_positions"`
	Eps          float64 `json:"eps"`         // of every RMSNorm
	NormOffset   float64 `json:"norm_offset"` // norms multiply by w+NormOffset
	EmbedScale   float64 `json:"embed_scale"` // of the looked-up embedding, not of a tied head
	LogitScale   float64 `json:"logit_scale"`
	FinalCap     float64 `json:"final_cap"` // soft-cap of the logits; 0: none
	Tied         bool    `json:"tied"`      // the head is the embedding
	PLE          PLE     `json:"ple,omitzero"`
	Layers       []Layer `json:"layers"`
	Ropes        []Rope  `json:"ropes"` // the distinct rotary embeddings, which layers point to
	BOS          int     `json:"bos"`   // −1: none
	EOS          []int   `json:"eos"`   // ids that end a text; may be empty
	Pad          int     `json:"pad"`   // −1: none
	InitRange    float64 `json:"init_range"`

	DType  tensor.DType `json:"-"` // of the weights, as the file says
	Stored string       `json:"-"` // how matrices are stored beyond DType: "", "mxfp4" or "fp8"
}

// PLE describes per-layer embeddings (Gemma 4). The zero PLE is none.
type PLE struct {
	Width int `json:"width"` // values per layer and token
	Vocab int `json:"vocab"` // rows of their table
}

// Layer is one layer: a mixer and a feed-forward network, each a residual branch.
type Layer struct {
	Attn     Attention `json:"attn,omitzero"`  // the mixer, unless Delta is set
	Delta    DeltaNet  `json:"delta,omitzero"` // Gated DeltaNet instead of attention
	FFN      FFN       `json:"ffn"`
	Pre      bool      `json:"pre"`                 // a norm before mixer and FFN
	Post     bool      `json:"post"`                // a norm after mixer and FFN
	Residual float64   `json:"residual"`            // factor of both branches
	OutScale bool      `json:"out_scale,omitempty"` // the layer's output is multiplied by a stored number
}

// QKNorm says over what q and k are normalised.
type QKNorm string

// The norms of q and k.
const (
	NoQKNorm QKNorm = ""
	HeadNorm QKNorm = "head" // over the values of a head, one weight for all heads
	RowNorm  QKNorm = "row"  // over all heads of a row, before they are split
)

// Attention describes causal attention with Heads query heads that share KVHeads key and value heads: query head h reads
// ⌊h·KVHeads/Heads⌋.
type Attention struct {
	HeadDim int     `json:"head_dim"`
	Heads   int     `json:"heads"`
	KVHeads int     `json:"kv_heads"`
	Window  int     `json:"window,omitempty"` // query i sees keys i−Window < j ≤ i; 0: all j ≤ i
	QKNorm  QKNorm  `json:"qk_norm,omitempty"`
	VNorm   bool    `json:"v_norm,omitempty"` // v is normalised over heads, without a weight
	KVFrom  int     `json:"kv_from"`          // the layer whose finished k and v are used; the layer itself: its own
	VIsK    bool    `json:"v_is_k,omitempty"` // v is k's projection, before norm and rotation
	Rope    int     `json:"rope"`             // index into Config.Ropes; −1: no rotary embedding
	Scale   float64 `json:"scale"`            // of the scores
	Cap     float64 `json:"cap,omitempty"`    // soft-cap of the scaled scores; 0: none
	QBeta   float64 `json:"q_beta,omitempty"` // rotated q times 1+QBeta·ln(1+⌊position/QLength⌋); 0: none
	QLength int     `json:"q_length,omitempty"`
	Sinks   bool    `json:"sinks,omitempty"` // a learned logit per head joins the softmax
	Gate    bool    `json:"gate,omitempty"`  // the output of each head times σ of a gate, projected with q
	QKVBias bool    `json:"qkv_bias,omitempty"`
	OBias   bool    `json:"o_bias,omitempty"`
}

// DeltaNet describes a Gated DeltaNet mixer: linear attention with a state [KeyDim, ValueDim] per value head.
type DeltaNet struct {
	KeyHeads   int `json:"key_heads"`
	ValueHeads int `json:"value_heads"`
	KeyDim     int `json:"key_dim"`
	ValueDim   int `json:"value_dim"`
	Conv       int `json:"conv"` // taps of the causal convolution
}

// QKV returns the channels of the convolution: q, k and v.
func (d DeltaNet) QKV() int { return 2*d.KeyHeads*d.KeyDim + d.ValueHeads*d.ValueDim }

// Inner returns the width of v and of the output.
func (d DeltaNet) Inner() int { return d.ValueHeads * d.ValueDim }

// Activation is the function between gate and up.
type Activation string

// The activations. OSS is (clip(u,±7)+1)·G·σ(1.702·G), G = min(g,7).
const (
	SiLU     Activation = "silu"
	GELUTanh Activation = "gelu_tanh"
	OSS      Activation = "oss"
)

// FFN is down(act(gate·x, up·x)) of Width, or experts, or both beside each other.
type FFN struct {
	Act   Activation `json:"act"`
	Width int        `json:"width,omitempty"` // of the dense network; 0: experts only
	MoE   MoE        `json:"moe,omitzero"`
}

// MoE describes a mixture of experts. A router gives each token logits z over all experts.
type MoE struct {
	Experts   int  `json:"experts"`
	Active    int  `json:"active"` // experts per token
	Width     int  `json:"width"`
	TopKFirst bool `json:"top_k_first,omitempty"` // softmax over the chosen logits; else over all, before the choice
	Renorm    bool `json:"renorm,omitempty"`      // the chosen probabilities are divided by their sum
	Bias      bool `json:"bias,omitempty"`        // of router and experts
	Shared    int  `json:"shared,omitempty"`      // width of an expert that every token uses, times σ(x·w_s); 0: none
	// Beside: the experts stand beside the dense network, with norms of their own, a router with its own norm and scale, and
	// a factor for each expert (Gemma 4).
	Beside bool `json:"beside,omitempty"`
}

// Linear reports whether the layer's mixer is a DeltaNet.
func (l Layer) Linear() bool { return l.Delta != DeltaNet{} }

// OwnKV reports whether layer i projects k and v itself.
func (c Config) OwnKV(i int) bool { return !c.Layers[i].Linear() && c.Layers[i].Attn.KVFrom == i }

// QDim returns the width of q without gates.
func (a Attention) QDim() int { return a.Heads * a.HeadDim }

// KVDim returns the width of k, and of v.
func (a Attention) KVDim() int { return a.KVHeads * a.HeadDim }

// Rope returns the rotary embedding of layer i, and false if it has none.
func (c Config) Rope(i int) (Rope, bool) {
	if at := c.Layers[i].Attn.Rope; !c.Layers[i].Linear() && at >= 0 {
		return c.Ropes[at], true
	}
	return Rope{}, false
}
