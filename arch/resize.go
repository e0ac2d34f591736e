package arch

import "math"

// Resized returns c with another hidden size, and with what its family computes from that: the factor of the embedding. What has
// the width of a head stays.
func (c Config) Resized(hidden int) Config {
	c.Hidden = hidden
	if c.family().rootScale {
		c.EmbedScale = math.Sqrt(float64(hidden))
	}
	return c
}
