// Quantised blocks to plain numbers.
//apr:module target=sm_80 types=bf16,f32 roles=blocks
#include "dequant.cuh"

// A warp decodes 4 spans: at Q4_K it reads 576 consecutive bytes and writes 2 KiB, 512 in one instruction.
template <class B, class T> APR_DEVICE void dequant(const DequantArgs &a) {
    each_chunk<B>(a, (block() * 8 + warp()) * 4, [&](const float (&x)[8], u32 row, u32 chunk, int k) {
        Pack<T, 8> r;
        narrow(r, x);
        store_pack((T *)a.dst + row * a.dst_stride + (u64)chunk * 8 + k * 256, r);
    });
}

#define DEQUANT(type, B) \
    KERNEL(dequant_##type##_bf16, DequantArgs, 256, 6) { dequant<B, bf16>(a); } \
    KERNEL(dequant_##type##_f32, DequantArgs, 256, 4) { dequant<B, float>(a); }

DEQUANT(q4_k, BlockQ4K)
DEQUANT(q5_k, BlockQ5K)
DEQUANT(q6_k, BlockQ6K)
DEQUANT(q8_0, BlockQ8_0)
DEQUANT(q4_0, BlockQ4_0)
DEQUANT(q5_0, BlockQ5_0)
DEQUANT(iq4_nl, BlockIQ4NL)
DEQUANT(iq4_xs, BlockIQ4XS)
DEQUANT(mxfp4, BlockMXFP4)
