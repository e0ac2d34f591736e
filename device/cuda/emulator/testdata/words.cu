// words.cu: kernels that show that the emulator means what apr.cuh says.
#include "apr.cuh"

struct WordsArgs {
    u32 *out;
    const u32 *in;
    i64 n;
};

// Where each thread stands.
KERNEL(test_place, WordsArgs, 1024, 1) {
    u32 b = block() + blocks() * (block_y() + 3 * block_z());
    u32 *o = a.out + 6 * (i64)(b * threads() + thread());
    o[0] = thread(), o[1] = threads(), o[2] = block(), o[3] = block_y(), o[4] = block_z(), o[5] = blocks();
}

// All exchanges of one warp: 8 words a lane.
KERNEL(test_exchange, WordsArgs, 32, 1) {
    u32 v = a.in[lane()];
    u32 *o = a.out + 8 * lane();
    o[0] = shfl_xor(v, 5);
    o[1] = shfl(v, 31 - (int)lane());
    o[2] = shfl_up(v, 3);
    o[3] = bits(shfl_down(from_bits(v), 7));
    o[4] = ballot(v & 1);
    o[5] = shfl((i32)v, 9);
    o[6] = bits(shfl_xor(from_bits(v), 16));
    u64 d = __builtin_bit_cast(u64, shfl_xor(__builtin_bit_cast(double, (u64)v << 32 | lane()), 1));
    o[7] = (u32)(d >> 32) ^ (u32)d;
}

// The sum over a block, many times: what every thread got.
KERNEL(test_block_sum, WordsArgs, 1024, 1) {
    SHARED(float, part, 33);
    float s = 0;
    for (i64 i = 0; i < a.n; i++) s = block_sum((float)a.in[thread()], part);
    a.out[(i64)block() * threads() + thread()] = bits(s);
}

// Unary functions and conversions: 16 words for each input.
KERNEL(test_arithmetic, WordsArgs, 256, 1) {
    i64 i = (i64)block() * threads() + thread();
    if (i >= a.n) return;
    float x = from_bits(a.in[2 * i]), y = from_bits(a.in[2 * i + 1]);
    u32 *o = a.out + 16 * i;
    o[0] = bits(exp2_approx(x));
    o[1] = bits(log2_approx(x));
    o[2] = bits(rsqrt_approx(x));
    o[3] = bits(rcp_approx(x));
    o[4] = bits(sqrt_rn(x));
    o[5] = bits(fma_rn(x, y, 1.0f));
    o[6] = bits(max2(x, y));
    o[7] = bits(min2(x, y));
    o[8] = to_bf16(x);
    o[9] = pack_bf16(x, y);
    o[10] = to_tf32(x);
    o[11] = (u32)popcount(a.in[2 * i]);
    o[12] = bits(from_bf16((bf16)a.in[2 * i]));
    o[13] = bits((float)sqrt_rn((double)x));
    o[14] = 0, o[15] = 0;
}
