package arch

import "fmt"

// NotInLlamaCpp says why llama.cpp refuses a GGUF file of c, which every other reader takes, "" if nothing is known
// against it. For some families it shapes the matrices of queries and outputs hidden × hidden, which is wrong where
// the query heads together are not as wide as the residual stream (`prune --hidden` without `--heads`, or a
// head_dim of its own). Seen in its build 11669.
func (c Config) NotInLlamaCpp() string {
	if !c.family().square {
		return ""
	}
	for _, l := range c.Layers {
		a := l.Attn
		if a.Heads == 0 || a.Heads*a.HeadDim == c.Hidden {
			continue
		}
		return fmt.Sprintf("llama.cpp refuses GGUF files of this shape: it takes hidden_size / heads for the size of a head "+
			"in %s models, here %d / %d, and the heads have %d. It needs hidden_size = "+
			"heads × %d: keep --hidden %d for %d heads",
			c.Family, c.Hidden, a.Heads, a.HeadDim, a.HeadDim, a.Heads*a.HeadDim, a.Heads)
	}
	return ""
}
