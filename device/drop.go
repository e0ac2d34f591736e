package device

// Drop says which values Dropout drops. The generator counts: a value is dropped or kept by its place alone, so that whatever
// computes it again drops the same, on every device.
type Drop struct {
	Rate  float64 // 0 ≤ Rate < 1: the share of values that are dropped
	Key   uint64
	First int // rows before the first one
}

// Threshold returns Rate·2³², below which a number of the generator drops a value, and what the others are multiplied by.
func (d Drop) Threshold() (below uint32, scale float32) {
	return uint32(d.Rate * (1 << 32)), float32(1 / (1 - d.Rate))
}

// Drops reports whether element i is dropped: whether the upper half of number i+1 of splitmix64 (Steele, Lea and Flood 2014)
// from state Key is below the threshold.
func (d Drop) Drops(i uint64) bool {
	below, _ := d.Threshold()
	return DropNumber(d.Key, i) < below
}

// DropNumber returns the upper half of number i+1 of splitmix64 from state key.
func DropNumber(key, i uint64) uint32 {
	z := key + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return uint32((z ^ z>>31) >> 32)
}

// CheckDropout checks a call of Dropout.
func CheckDropout(y, x Tensor, d Drop) {
	views(OpDropout, y, x)
	alike(OpDropout, y, x)
	need(d.Rate >= 0 && d.Rate < 1, OpDropout, noRate)
	need(d.First >= 0, OpDropout, wrongShapes)
}
