// experts_blocks.cuh: the matrices of experts in quantised blocks as an operand of products: a tile of them is decoded on its way to
// shared memory, in the bits that Dequantize gives.
#pragma once
#include "dequant.cuh"

// with_blocks calls use with a block of a type, a number of package kernel.
template <class F> APR_DEVICE void with_blocks(u32 type, F use) {
    switch (type) {
    case 0: return use(BlockQ4K());
    case 1: return use(BlockQ5K());
    case 2: return use(BlockQ6K());
    case 3: return use(BlockQ8_0());
    case 4: return use(BlockQ4_0());
    case 5: return use(BlockQ5_0());
    case 6: return use(BlockIQ4NL());
    case 7: return use(BlockIQ4XS());
    case 8: return use(BlockMXFP4());
    }
}

template <int N> struct BlockWords { u32 w[N]; };

// HeldBlocks are N packs of 8 values of a row, of one group of 32, as they stand in blocks: in registers of no type, so that one loop
// serves all types.
template <int N> struct HeldBlocks {
    u32x4 head;
    u32 word[N][5];
    u32 first; // pack of its span
    bool there;

    APR_METHOD static void keep(u32x4 &head, const ScalesK<1> &s) { head = s.head; }
    APR_METHOD static void keep(u32x4 &, const NoScales &) {}
    APR_METHOD static void take(ScalesK<1> &s, u32x4 head) { s.head = head; }
    APR_METHOD static void take(NoScales &, u32x4) {}

    // load reads packs pack … pack+N−1 of the row that begins at p; without valid, they are zeros.
    APR_METHOD void load(u32 type, const u8 *p, u32 pack, bool valid) {
        there = valid, first = pack % 32;
        if (!valid) return;
        with_blocks(type, [&](auto block) {
            typedef decltype(block) B;
            const u8 *span = p + (u64)(pack / 32) * B::bytes;
            typename B::template Scales<1> scales;
            scales.load(span, B::bytes, first);
            keep(head, scales);
            UNROLL for (int i = 0; i < N; i++) {
                B b;
                b.load(span, first + i);
                const auto words = __builtin_bit_cast(BlockWords<sizeof(B) / 4>, b);
                UNROLL for (u32 k = 0; k < sizeof(B) / 4; k++) word[i][k] = words.w[k];
            }
        });
    }

    // decode calls put(x, i) with the values of pack i.
    template <class F> APR_METHOD void decode(u32 type, F put) const {
        if (!there) {
            const float zeros[8] = {};
            UNROLL for (int i = 0; i < N; i++) put(zeros, i);
            return;
        }
        with_blocks(type, [&](auto block) {
            typedef decltype(block) B;
            typename B::template Scales<1> scales;
            take(scales, head);
            scales.prepare(first);
            UNROLL for (int i = 0; i < N; i++) {
                BlockWords<sizeof(B) / 4> words;
                UNROLL for (u32 k = 0; k < sizeof(B) / 4; k++) words.w[k] = word[i][k];
                float x[8];
                __builtin_bit_cast(B, words).decode(x, first + i, scales, 0);
                put(x, i);
            }
        });
    }
};
