// Package arch describes decoder models as data: what a family computes, and where its tensors are in files.
//
// A Config says everything that one forward and one backward pass have to know about a model, per model and per layer.
// Parse reads it from a Hugging Face config.json, FromGGUF from the metadata of a GGUF file. Slots lists every tensor of
// a Config: its name, shape and role, and where it is stored in each format. A family is one table in one file of this
// package (family_*.go); code elsewhere looks at the description and never asks for a family's name.
//
// With H the hidden size, x [positions, H] and norm(x) = x·r·(w+NormOffset), r = 1/√(mean x²+Eps):
//
//	x = Embedding[id] · EmbedScale
//	for each layer:
//	    for F in (mixer, FFN):
//	        y = F(Pre ? norm(x) : x)
//	        x = x + Residual · (Post ? norm(y) : y)
//	    PLE.Width > 0 ? x = x + norm(Wp(gelu_tanh(Wg·x) · p_i))
//	    OutScale ? x = x · layer_scalar
//	logits = cap(norm(x)·Wᵀ · LogitScale), W the unscaled embedding if Tied, cap(z) = FinalCap · tanh(z/FinalCap)
//
// Attention projects q, k and v, applies norms over whole rows, splits heads, applies norms over heads, rotates, scales
// q by its position, and computes softmax(cap(Scale · q·k) + mask). The fields of Attention say which of these happen.
//
// A rotary embedding is stored as its recipe, and handed out as a table of inverse frequencies (Rope.Frequencies): the
// arithmetic knows no kinds of scaling, and files can still be written with the keys that they came with.
//
// Caveats. A description may have features that are only described (Config.NotComputed names them): such a model can be
// inspected, counted and converted; nothing may be computed with it. Config.JSON is canonical, so equal descriptions have
// equal bytes and hashes; where the weights came from, and in which types, is not part of it.
package arch
