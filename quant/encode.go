package quant

// MaxAbs is the largest magnitude that Quantize accepts: the largest finite half, so that every scale is a finite half.
const MaxAbs = 65504
