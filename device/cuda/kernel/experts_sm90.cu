// Products of experts on compute capability 9.0, of many slots, in bfloat16 and in e4m3, and in bfloat16 the gradients
// of their matrices. See experts_sm90.go.
//
// A block takes tile after tile of c, 128 rows by 256 columns. One warpgroup only fetches: per stage, 128 bytes of the
// inner dimension, 16 KiB of a and 32 KiB of b, ahead of what is multiplied, across tiles, too. Two multiply, 64 rows
// each, and write while the next tile is fetched. In a stage, an operand whose rows are rows of c (columns, for b) is
// rows of 128 bytes; one whose rows are inner positions is panels of 64 columns, each 64 rows of 128 bytes. The 16-byte
// chunk c of row r stands at chunk c ^ (r mod 8).
//
// Inner positions outside an operand come as zeros: slots of the next expert, above all, where sums run over slots.
// Rows outside come as zeros or not at all. Of a tile whose second half has no slots the second warpgroup multiplies
// nothing.
//apr:module target=sm_90a types=bf16 roles=optional emulated=yes
#include "experts.cuh"

#define PANEL 8192
#include "attention_hopper.cuh"

#define WARPGROUP 128 // threads
#define HIGH 128      // a tile of c
#define WIDE 256
#define SUMS (WIDE / 2) // of a thread
#define LEFT (HIGH * 128)
#define STAGE (LEFT + WIDE * 128)
#define STAGES 4

// Types of operands. DEEP is the inner positions of a stage.
struct BF16 {
    typedef bf16 T;
    static constexpr int DEEP = 64;
    static constexpr bool SCALED = false;
};
struct E4M3 { // rows have scales
    typedef u8 T;
    static constexpr int DEEP = 128;
    static constexpr bool SCALED = true;
};

#ifdef APR_HOST
struct HostE4M3 {
    const u8 *at;
    HostE4M3(u64 x) { at = shared_at((u32)x); }
    float operator()(u32 row, u32 column) const {
        const u32 v = at[row * 128 + ((column / 16 ^ row % 8) << 4) + column % 16], e = v >> 3 & 15, m = v & 7;
        if ((v & 127) == 127) return from_bits(0x7fffffffu);
        const float x = e ? from_bits((e + 120) << 23 | m << 20) : (float)m * 0x1p-9f;
        return v & 128 ? -x : x;
    }
};
template <class TYPE> struct HostOf;
template <> struct HostOf<BF16> { typedef HostOperand Operand; };
template <> struct HostOf<E4M3> { typedef HostE4M3 Operand; };

// multiply computes d (+)= a·b of a stage, whose operands have rows of c or, where not AK or BK, of inner positions.
template <class TYPE, bool AK, bool BK> APR_DEVICE void multiply(float (&d)[SUMS], u64 a, u64 b, u32 more) {
    const typename HostOf<TYPE>::Operand left(a), right(b);
    const HostPart p;
    float rows[2][TYPE::DEEP];
    for (u32 k = 0; k < TYPE::DEEP; k++)
        for (u32 e = 0; e < 2; e++) rows[e][k] = AK ? left(p.row(2 * e), k) : left(k, p.row(2 * e));
    for (u32 i = 0; i < SUMS; i++) {
        if (i & 2) continue; // of the second row, with the first
        float s = more ? d[i] : 0, t = more ? d[i + 2] : 0;
        for (u32 k = 0; k < TYPE::DEEP; k++) {
            const float x = BK ? right(p.column(i), k) : right(k, p.column(i));
            s = fma_rn(rows[0][k], x, s), t = fma_rn(rows[1][k], x, t);
        }
        d[i] = s, d[i + 2] = t;
    }
    apr_host::sync_warp();
}
APR_DEVICE void store_float2(u32 at, f32x2 v) { *(f32x2 *)shared_at(at) = v; }
APR_DEVICE void begin_products(float (&)[SUMS]) {}
APR_DEVICE void commit_products() {}
#else

#define PRODUCT_BF16(ta, tb) "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" REGISTERS_128 "}, a, b, more, 1, 1, " #ta ", " #tb ";\n"
#define PRODUCT_E4M3 "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" REGISTERS_128 "}, a, b, more, 1, 1;\n"
#define FURTHER(sa, sb) "add.s64 a, a, " #sa "; add.s64 b, b, " #sb "; mov.pred more, on;\n"
#define MULTIPLY(product, sa, sb) \
    asm volatile("{ .reg .pred on, more; .reg .b64 a, b; setp.eq.b32 on, 0, 0; setp.ne.b32 more, %130, 0;\n" \
        "mov.b64 a, %128; mov.b64 b, %129;\n" \
        product FURTHER(sa, sb) product FURTHER(sa, sb) product FURTHER(sa, sb) product "}" \
        : CHANGES_128(d) : "l"(a), "l"(b), "r"(more) : "memory")

// multiply starts d (+)= a·b of a stage, whose operands have rows of c or, where not AK or BK, of inner positions. An
// instruction multiplies 32 bytes of a row, or 16 rows.
template <class TYPE, bool AK, bool BK> APR_DEVICE void multiply(float (&d)[SUMS], u64 a, u64 b, u32 more) {
    if constexpr (TYPE::SCALED) MULTIPLY(PRODUCT_E4M3, 2, 2);
    else if constexpr (AK && BK) MULTIPLY(PRODUCT_BF16(0, 0), 2, 2);
    else if constexpr (AK) MULTIPLY(PRODUCT_BF16(0, 1), 2, 128);
    else MULTIPLY(PRODUCT_BF16(1, 1), 128, 128);
}
APR_DEVICE void store_float2(u32 at, f32x2 v) { asm volatile("st.shared.v2.f32 [%0], {%1,%2};" : : "r"(at), "f"(v[0]), "f"(v[1]) : "memory"); }
APR_DEVICE f32x2 load_floats(u32 at) {
    float x, y;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
    return f32x2{x, y};
}
APR_DEVICE void begin_products(float (&d)[SUMS]) { asm volatile("wgmma.fence.sync.aligned;" : CHANGES_128(d) : : "memory"); }
APR_DEVICE void sync_group(u32 group) { asm volatile("bar.sync %0, 128;" : : "r"(1 + group) : "memory"); }
APR_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
#endif

// Ring is the stages in shared memory, each with a barrier `full` and a barrier `empty`.
struct Ring {
    u32 stages, barriers;
    u8 *memory; // where the stages begin
    APR_METHOD void place(u8 *base) {
        stages = (shared_address(base) + 1023) & ~1023u;
        memory = base + (stages - shared_address(base));
        barriers = stages + STAGES * STAGE;
    }
    APR_METHOD u32 stage(u32 place) const { return stages + place * STAGE; }
    APR_METHOD u32 full(u32 place) const { return barriers + place * 8; }
    APR_METHOD u32 empty(u32 place) const { return barriers + (STAGES + place) * 8; }
    // scales is where those of a warpgroup's columns stand, with E4M3.
    APR_METHOD u32 scales(u32 group) const { return barriers + STAGES * 16 + group * (WIDE * 4); }
};

// Walk is a block's share of all tiles; SLOTS: rows of c are slots, else the sums run over them. All lanes of a warp
// take part.
template <class TYPE, bool SLOTS> struct Walk {
    const ExpertArgs &a;
    i32 item, row, col;
    Share share; // the expert's slots
    i32 base, before, ends; // 32 experts, the tiles of those before them, and of them up to the lane's: of SLOTS

    APR_METHOD Walk(const ExpertArgs &args) : a(args), item((i32)block()), row(0), col(0), share(), base(0), before(0), ends(0) {
        if (SLOTS) count();
    }
    // count sets ends.
    APR_METHOD void count() {
        const i32 e = base + (i32)lane();
        ends = e < a.experts ? (slots_of(a, e).rows + HIGH - 1) / HIGH : 0;
        UNROLL for (int d = 1; d < 32; d *= 2) {
            const i32 v = (i32)shfl_up((u32)ends, d);
            if (lane() >= (u32)d) ends += v;
        }
    }

    APR_METHOD i32 rows() const { return SLOTS ? share.rows : a.gemm.m; } // of c
    APR_METHOD i32 deep() const { return SLOTS ? a.gemm.k : share.rows > 0 ? share.rows : 1; } // without slots one stage of zeros passes
    APR_METHOD GemmArgs gemm() const { return SLOTS ? shift<sizeof(typename TYPE::T)>(a, share) : shift_sums<2>(a, share); }

    APR_METHOD bool next() {
        const i32 wide = (a.gemm.n + WIDE - 1) / WIDE;
        if constexpr (SLOTS) {
            const i32 tile = item / wide;
            i32 all = (i32)shfl((u32)ends, 31);
            NO_UNROLL for (; before + all <= tile; all = (i32)shfl((u32)ends, 31)) {
                before += all, base += 32;
                if (base >= a.experts) return false;
                count();
            }
            const i32 ended = (i32)popcount(ballot(before + ends <= tile)), first = (i32)shfl((u32)ends, ended - 1);
            share = slots_of(a, base + ended);
            row = (tile - before - (ended ? first : 0)) * HIGH, col = item % wide * WIDE;
            item += blocks();
            return true;
        }
        const i32 each = (a.gemm.m + HIGH - 1) / HIGH * wide;
        NO_UNROLL for (; item < a.experts * each; item += blocks()) {
            share = slots_of(a, item / each);
            if (share.rows == 0 && a.gemm.flags & GEMM_ADD) continue;
            row = item % each / wide * HIGH, col = item % wide * WIDE;
            item += blocks();
            return true;
        }
        return false;
    }
};

// each_64 calls f for every 64th of SIZE rows, of which the tile has `left`, with whether all 64 are there: then a
// thread, which takes every 16th, asks for nothing more. A warp that fetches has a scheduler for itself, and waits for
// each of its instructions. Rows that are not there are left out 64 at a time, and their memory is left as it was:
// what is multiplied with it is not written.
struct All { static constexpr bool there = true; };
struct Some { static constexpr bool there = false; };
template <int SIZE, class F> APR_DEVICE void each_64(i32 left, F f) {
    i32 n = 0;
    NO_UNROLL for (; n < SIZE && n + 64 <= left; n += 64) f(n, All());
    if (n < SIZE && n < left) f(n, Some());
}

// Source is one operand as a thread that fetches sees it: every 16th row of a tile of SIZE rows of c, or of 64 inner positions, and of each
// (in each panel) one chunk.
template <class TYPE, bool KMAJOR, int SIZE> struct Source {
    typedef typename TYPE::T T;
    static constexpr int STEP = WARPGROUP / 8, CHUNK = 16 / sizeof(T), DEEP = TYPE::DEEP;
    const T *from;
    i64 stride;
    i32 row, col, rows, cols; // its place in the operand as stored, and the end
    u32 to;

    APR_METHOD void begin(const void *p, i64 ld, i32 mn, i32 k, i32 first) {
        const i32 r = (i32)thread() / 8, c = (i32)thread() % 8;
        row = r + (KMAJOR ? first : 0), col = c * CHUNK + (KMAJOR ? 0 : first);
        rows = KMAJOR ? mn : k, cols = KMAJOR ? k : mn;
        stride = ld, from = (const T *)p + row * ld + col;
        to = r * 128 + ((c ^ r % 8) << 4);
    }
    template <class F> APR_METHOD void fetch_panels(u32 tile, F there) {
        const T *p = from;
        UNROLL for (int n = 0; n < DEEP; n += STEP, p += STEP * stride)
            UNROLL for (int c = 0; c < SIZE; c += 64) fetch16(tile + c / 64 * PANEL + n * 128, p + c, there(n) && col + c < cols);
    }
    APR_METHOD void fetch(u32 tile) {
        if constexpr (KMAJOR) {
            const T *p = from;
            const i32 left = rows - row;
            each_64<SIZE>(left + (i32)thread() / 8, [&](i32 n, auto of) {
                UNROLL for (int i = 0; i < 64; i += STEP, p += STEP * stride)
                    fetch16(tile + to + (n + i) * 128, p, (of.there || n + i < left) && col < cols);
            });
            col += DEEP, from += DEEP;
        } else {
            if (row - (i32)thread() / 8 + DEEP <= rows) fetch_panels(tile + to, [&](int) { return true; });
            else fetch_panels(tile + to, [&](int n) { return row + n < rows; });
            row += DEEP, from += DEEP * stride;
        }
    }
};

// Tokens is Source of a with a row for each token instead of each slot: index says whose row a slot takes.
template <class TYPE> struct Tokens {
    static constexpr int CHUNK = 16 / sizeof(typename TYPE::T);
    const u8 *from;
    const i32 *index;
    u32 stride; // bytes
    i32 slots, col, cols; // slots of the tile and behind it, the thread's place in a row, and the end
    u32 to;

    APR_METHOD void begin(const GemmArgs &g, const i32 *rows, i32 first, i32 slots) {
        const i32 r = (i32)thread() / 8, c = (i32)thread() % 8;
        index = rows + first + r, this->slots = slots;
        col = c * CHUNK, cols = g.k, stride = (u32)g.lda * sizeof(typename TYPE::T), from = (const u8 *)g.a + c * 16;
        to = r * 128 + ((c ^ r % 8) << 4);
    }
    APR_METHOD void fetch(u32 tile) {
        const i32 left = slots - (i32)thread() / 8;
        each_64<HIGH>(slots, [&](i32 n, auto of) {
            i32 row[4];
            UNROLL for (int i = 0; i < 4; i++) row[i] = of.there || n + i * 16 < left ? index[n + i * 16] : 0;
            UNROLL for (int i = 0; i < 4; i++)
                fetch16(tile + to + (n + i * 16) * 128, from + (u64)(u32)row[i] * stride, (of.there || n + i * 16 < left) && col < cols);
        });
        col += TYPE::DEEP, from += 128;
    }
};

// announce says that a stage is there, when at most N younger ones are on their way.
template <int N> APR_DEVICE void announce(const Ring &ring, u32 place) {
    copy_async_wait<N>();
    publish();
    sync_warp();
    if (lane() == 0) barrier_arrive(ring.full(place));
}

template <class TYPE, bool AK, bool TOKENS> struct Left { typedef Source<TYPE, AK, HIGH> Type; };
template <class TYPE> struct Left<TYPE, true, true> { typedef Tokens<TYPE> Type; };

// fetch_all is what a warpgroup does that only fetches. A stage is on its way while the next is begun; of the other two
// one is multiplied, and one free as soon as its products are complete: with two on their way, each stage would wait for
// the one before. With TOKENS rows say whose row of a a slot takes.
template <class TYPE, bool AK, bool BK, bool TOKENS> APR_DEVICE void fetch_all(const Ring &ring, Walk<TYPE, AK> &walk, const i32 *rows) {
    Places at = {0, 0}, oldest = {0, 0}; // oldest: that is on its way
    u32 pending = 0;
    while (walk.next()) {
        const GemmArgs g = walk.gemm();
        const i32 deep = walk.deep();
        typename Left<TYPE, AK, TOKENS>::Type left;
        Source<TYPE, BK, WIDE> right;
        if constexpr (TOKENS) left.begin(walk.a.gemm, rows, walk.share.first + walk.row, g.m - walk.row);
        else left.begin(g.a, g.lda, g.m, g.k, walk.row);
        right.begin(g.b, g.ldb, g.n, g.k, walk.col);
        NO_UNROLL for (i32 k = 0; k < deep; k += TYPE::DEEP) {
            barrier_wait(ring.empty(at.at), at.parity ^ 1);
            left.fetch(ring.stage(at.at));
            right.fetch(ring.stage(at.at) + LEFT);
            copy_async_commit();
            at.next(0, STAGES);
            if (pending < 1) {
                pending++;
                continue;
            }
            announce<1>(ring, oldest.at);
            oldest.next(0, STAGES);
        }
    }
    NO_UNROLL for (; pending; pending--, oldest.next(0, STAGES)) announce<0>(ring, oldest.at);
}

// More is what sums of c in bfloat16 are changed by.
enum More { NOTHING, BIAS, OLD, SCALES };

// pack_sums returns the sums d[i] and d[i+1] of a thread in bfloat16 after MORE; at is the first's place in c, there
// whether c has it, scale and scales the factor of its row and the place of those of both columns.
template <More MORE>
APR_DEVICE u32 pack_sums(const GemmArgs &a, const float (&d)[SUMS], int i, const bf16 *at, i32 col, bool there, float scale, u32 scales) {
    float x = 0, y = 0;
    if ((MORE == BIAS || (MORE == SCALES && a.bias)) && col < a.n) x = a.bias[col], y = a.bias[col + 1];
    if (MORE == OLD && there && col < a.n) {
        const u32 old = *(const u32 *)at;
        x = from_bits(old << 16), y = from_bits(old & 0xffff0000u);
    }
    if (MORE == SCALES) {
        const f32x2 s = load_floats(scales);
        x = d[i] * scale * s[0] + x, y = d[i + 1] * scale * s[1] + y;
        return pack_bf16(x, y);
    }
    return MORE == NOTHING ? pack_bf16(d[i], d[i + 1]) : pack_bf16(d[i] + x, d[i + 1] + y);
}

// write writes a warp's sums, of 16 rows from `row` and 256 columns from `col` on, to c of bfloat16. 64 columns at a
// time pass through 2 KiB of shared memory, from where 8 lanes write a row.
template <More MORE> APR_DEVICE void write(const GemmArgs &a, const float (&d)[SUMS], i32 row, i32 col, u32 staging, const float (&scale)[2], u32 scales) {
    const u32 l = lane(), r = l & 15, chunk = l & 7;
    const u32 from = staging + (l >> 3) * 128 + ((chunk ^ l >> 3) << 4), to = staging + r * 128 + ((l >> 4 ^ (r & 7)) << 4);
    bf16 *p = (bf16 *)a.c + (row + (i32)(l >> 3)) * a.ldc + col + chunk * 8;
    const i32 rows = a.m - row - (i32)(l >> 3), cols = a.n - col - (i32)chunk * 8;
    const i32 mine = row + (i32)(l >> 2), pair = (i32)(l & 3) * 2;
    const bf16 *old = (const bf16 *)a.c + mine * a.ldc + col + pair;
    UNROLL for (int j = 0; j < SUMS; j += 32) {
        UNROLL for (int i = 0; i < 32; i += 8) { // 16 columns
            u32 w[4];
            UNROLL for (int q = 0; q < 4; q++) {
                const int c = 2 * (j + i) + q / 2 * 8;
                w[q] = pack_sums<MORE>(a, d, j + i + q / 2 * 4 + q % 2 * 2, old + q % 2 * 8 * a.ldc + c, col + pair + c, mine + q % 2 * 8 < a.m,
                    scale[q % 2], scales + (pair + c) * 4);
            }
            store_matrices(to ^ i * 4, w[0], w[1], w[2], w[3]);
        }
        sync_warp();
        UNROLL for (int i = 0; i < 16; i += 4) {
            const u32x4 v = load_shared16((from ^ (i & 4) * 16) + i * 128);
            if (i < rows && 2 * j < cols) store16(p + i * a.ldc + 2 * j, v);
        }
        sync_warp(); // before others are written there
    }
}

// write_floats is write to c of float.
APR_DEVICE void write_floats(const GemmArgs &a, const float (&d)[SUMS], i32 row, i32 col) {
    row += (i32)lane() / 4, col += (i32)lane() % 4 * 2;
    UNROLL for (int e = 0; e < 2; e++, row += 8) {
        if (row >= a.m) continue;
        float *p = (float *)a.c + row * a.ldc + col;
        UNROLL for (int j = 0; j < SUMS; j += 32) {
            f32x2 old[8] = {};
            if (a.flags & GEMM_ADD)
                UNROLL for (int i = 0; i < 8; i++)
                    if (col + 2 * j + 8 * i < a.n) old[i] = *(const f32x2 *)(p + 2 * j + 8 * i);
            UNROLL for (int i = 0; i < 8; i++)
                if (col + 2 * j + 8 * i < a.n) *(f32x2 *)(p + 2 * j + 8 * i) = f32x2{d[j + 4 * i + 2 * e], d[j + 4 * i + 2 * e + 1]} + old[i];
        }
    }
}

// finish writes a warp's sums.
template <class TYPE, bool AK, bool BK>
APR_DEVICE void finish(const GemmArgs &g, const float (&d)[SUMS], i32 row, i32 col, u32 staging, const float (&scale)[2], u32 scales) {
    if constexpr (!AK) write_floats(g, d, row, col);
    else if constexpr (TYPE::SCALED) write<SCALES>(g, d, row, col, staging, scale, scales);
    else if (BK ? g.bias != nullptr : g.flags & GEMM_ADD) write<BK ? BIAS : OLD>(g, d, row, col, staging, scale, scales);
    else write<NOTHING>(g, d, row, col, staging, scale, scales);
}

// multiply_tile computes a tile's sums, if the warpgroup has SOME rows, and frees its stages but the last, which it returns.
template <class TYPE, bool AK, bool BK, bool SOME>
APR_DEVICE u32 multiply_tile(const Ring &ring, Places &at, float (&d)[SUMS], u32 group, i32 deep) {
    u32 before = STAGES; // the stage that products still read
    NO_UNROLL for (i32 k = 0; k < deep; k += TYPE::DEEP, at.next(0, STAGES)) {
        const u32 stage = ring.stage(at.at);
        barrier_wait(ring.full(at.at), at.parity);
        if constexpr (SOME) {
            begin_products(d);
            multiply<TYPE, AK, BK>(d, operand(stage + group * PANEL), operand(stage + LEFT), k);
            commit_products();
            wait_products<1>(d);
        }
        if (lane() == 0 && before < STAGES) barrier_arrive(ring.empty(before));
        before = at.at;
    }
    if constexpr (SOME) wait_products<0>(d);
    return before;
}

struct ExpertsSm90Args {
    ExpertArgs experts;
    const i32 *rows;               // null: a has a row for each slot; else whose row each takes
    const float *a_scale, *b_scale; // with E4M3: of rows of a, and of all experts' matrices
};

// multiply_all is what the other warpgroups do.
template <class TYPE, bool AK, bool BK> APR_DEVICE void multiply_all(const Ring &ring, Walk<TYPE, AK> &walk, const ExpertsSm90Args &a) {
    const u32 group = thread() / WARPGROUP - 1, quarter = warp() & 3, t = thread() % WARPGROUP;
    Places at = {0, 0};
    float d[SUMS] = {}; // defined once, or the compiler would separate the instructions
    while (walk.next()) {
        const i32 deep = walk.deep(), row = walk.row + (i32)group * 64, left = walk.rows() - row;
        float scale[2] = {};
        f32x2 column = {};
        if constexpr (TYPE::SCALED) {
            const i32 slot = walk.share.first + row;
            UNROLL for (int e = 0; e < 2; e++) {
                const i32 r = (i32)quarter * 16 + (i32)lane() / 4 + e * 8;
                if (r < left) scale[e] = a.a_scale[a.rows ? a.rows[slot + r] : slot + r];
            }
            const i32 c = walk.col + 2 * (i32)t; // n is even
            const float *from = a.b_scale + (i64)walk.share.expert * a.experts.gemm.n + c;
            if (c < a.experts.gemm.n) column = f32x2{from[0], from[1]};
        }
        u32 last;
        if (left > 0) last = multiply_tile<TYPE, AK, BK, true>(ring, at, d, group, deep);
        else last = multiply_tile<TYPE, AK, BK, false>(ring, at, d, group, deep);
        if (TYPE::SCALED) store_float2(ring.scales(group) + t * 8, column);
        // Then nobody reads the group's rows of the last stage any more: each warp's results pass through a quarter.
        if (AK) sync_group(group);
        if (left > 0) {
            const u32 staging = ring.stage(last) + group * PANEL + quarter * (PANEL / 4);
            finish<TYPE, AK, BK>(walk.gemm(), d, row + (i32)quarter * 16, walk.col, staging, scale, ring.scales(group));
        }
        if (lane() == 0) barrier_arrive(ring.empty(last));
        if (TYPE::SCALED) sync_group(group); // before the next tile's are written there
    }
}

// Grid: as many blocks as run at once. Shared: 1024 bytes to align, the stages, the barriers, with E4M3 the scales of
// columns.
template <class TYPE, bool AK, bool BK> APR_DEVICE void experts(const ExpertsSm90Args &a) {
    DYNAMIC_SHARED(memory);
    Ring ring;
    ring.place(memory);
    if (thread() == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(ring.full(i), WARPGROUP / 32);
            barrier_init(ring.empty(i), 2 * WARPGROUP / 32);
        }
    }
    sync_block();
    Walk<TYPE, AK> walk(a.experts);
    if (thread() < WARPGROUP) {
        shrink_registers<72>();
        if (AK && BK && a.rows) fetch_all<TYPE, AK, BK, AK && BK>(ring, walk, a.rows);
        else fetch_all<TYPE, AK, BK, false>(ring, walk, nullptr);
    } else {
        grow_registers<216>();
        multiply_all<TYPE, AK, BK>(ring, walk, a);
    }
}

KERNEL(experts_sm90_nt, ExpertsSm90Args, 384, 1) { experts<BF16, true, true>(a); }
KERNEL(experts_sm90_nn, ExpertsSm90Args, 384, 1) { experts<BF16, true, false>(a); }
KERNEL(experts_sm90_tn, ExpertsSm90Args, 384, 1) { experts<BF16, false, false>(a); }
KERNEL(experts_sm90_e4m3, ExpertsSm90Args, 384, 1) { experts<E4M3, true, true>(a); }
