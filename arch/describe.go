package arch

import "fmt"

// String describes the shape in one line. Where layers differ, heads are those of most layers and the width is the first
// dense layer's.
func (c Config) String() string {
	head, a := "untied", c.attention()
	if c.Tied {
		head = "tied"
	}
	return fmt.Sprintf("%s, %d layers, hidden %d, %d/%d heads of %d, intermediate %d, vocabulary %d, %s head, %.2fM parameters",
		c.Family, len(c.Layers), c.Hidden, a.Heads, a.KVHeads, a.HeadDim, c.denseWidth(), c.Vocab, head, float64(c.Parameters())/1e6)
}

// Class returns what config.json names as the first of architectures: "Qwen2ForCausalLM".
func (c Config) Class() string { return c.family().class }

// Shapes returns the shape of every slot by its name.
func Shapes(c Config) map[string][]int {
	m := map[string][]int{}
	for _, s := range Slots(c) {
		m[s.Name] = s.Shape
	}
	return m
}
