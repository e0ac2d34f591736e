// A position through all layers of a model: see decode_layers.cuh.
#include "decode_layers.cuh"

KERNEL(decode_layers, DecodeArgs, 32 * DECODE_WARPS, 1) { decode_all(a); }
