// Products of experts in bfloat16 on compute capability 9.0, of many slots, and the gradients of their matrices. See experts_sm90.go.
//
// A block takes tile after tile of c, 128 rows by 256 columns. One warpgroup only fetches: per 64 inner positions 16 KiB of a and 32 KiB of b,
// in stages that run ahead, across tiles, too. Two multiply, 64 rows each, and write while the next tile is fetched. In a stage,
// an operand whose rows are rows of c (columns, for b) is rows of 128 bytes; one whose rows are inner positions is panels of 64 columns, each 64
// rows of 128 bytes. The 16-byte chunk c of row r stands at chunk c ^ (r mod 8).
//
// What lies outside an operand comes as zeros: slots of the next expert, above all, which are neighbours. Of a tile whose second half has no
// slots the second warpgroup multiplies nothing.
//apr:module target=sm_90a types=bf16 roles=optional emulated=yes
#include "experts.cuh"

#define PANEL 8192
#include "attention_hopper.cuh"

#define WARPGROUP 128 // threads
#define HIGH 128      // a tile of c
#define WIDE 256
#define DEEP 64 // inner positions of a stage
#define LEFT (HIGH * DEEP * 2)
#define STAGE (LEFT + WIDE * DEEP * 2)
#define STAGES 4
#define EXPERTS 4096 // most of a layer

#ifdef APR_HOST
// multiply computes d (+)= a·b of a stage, whose operands have rows of c or, where not AK or BK, of inner positions.
template <bool AK, bool BK> APR_DEVICE void multiply(float (&d)[128], u64 a, u64 b, u32 more) {
    const HostOperand left(a), right(b);
    const HostPart p;
    float rows[2][DEEP];
    for (u32 k = 0; k < DEEP; k++)
        for (u32 e = 0; e < 2; e++) rows[e][k] = AK ? left(p.row(2 * e), k) : left(k, p.row(2 * e));
    for (u32 i = 0; i < 128; i++) {
        if (i & 2) continue; // of the second row, with the first
        float s = more ? d[i] : 0, t = more ? d[i + 2] : 0;
        for (u32 k = 0; k < DEEP; k++) {
            const float x = BK ? right(p.column(i), k) : right(k, p.column(i));
            s = fma_rn(rows[0][k], x, s), t = fma_rn(rows[1][k], x, t);
        }
        d[i] = s, d[i + 2] = t;
    }
    apr_host::sync_warp();
}
#else

#define PRODUCT(ta, tb) "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" REGISTERS_128 "}, a, b, more, 1, 1, " #ta ", " #tb ";\n"
#define FURTHER(sa, sb) "add.s64 a, a, " #sa "; add.s64 b, b, " #sb "; mov.pred more, on;\n"
#define MULTIPLY(sa, sb, ta, tb) \
    asm volatile("{ .reg .pred on, more; .reg .b64 a, b; setp.eq.b32 on, 0, 0; setp.ne.b32 more, %130, 0;\n" \
        "mov.b64 a, %128; mov.b64 b, %129; wgmma.fence.sync.aligned;\n" \
        PRODUCT(ta, tb) FURTHER(sa, sb) PRODUCT(ta, tb) FURTHER(sa, sb) PRODUCT(ta, tb) FURTHER(sa, sb) PRODUCT(ta, tb) \
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1; }" : CHANGES_128(d) : "l"(a), "l"(b), "r"(more) : "memory")

// multiply starts d (+)= a·b of a stage, whose operands have rows of c or, where not AK or BK, of inner positions, and waits until the stage
// before is multiplied. 16 inner positions are 32 bytes of a row, or 16 rows.
template <bool AK, bool BK> APR_DEVICE void multiply(float (&d)[128], u64 a, u64 b, u32 more) {
    if constexpr (AK && BK) MULTIPLY(2, 2, 0, 0);
    else if constexpr (AK) MULTIPLY(2, 128, 0, 1);
    else MULTIPLY(128, 128, 1, 1);
}
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
};

// count_tiles writes how many tiles of HIGH slots there are up to the end of each expert; a warp does it together.
APR_DEVICE void count_tiles(const ExpertArgs &a, i32 *ends) {
    i32 before = 0;
    NO_UNROLL for (i32 base = 0; base < a.experts; base += 32) {
        const i32 e = base + (i32)lane();
        u32 sum = e < a.experts ? (u32)(slots_of(a, e).rows + HIGH - 1) / HIGH : 0;
        UNROLL for (int d = 1; d < 32; d *= 2) {
            const u32 v = shfl_up(sum, d);
            if (lane() >= (u32)d) sum += v;
        }
        if (e < a.experts) ends[e] = before + (i32)sum;
        before += (i32)shfl(sum, 31);
    }
}

// Walk is a block's share of all tiles; SLOTS: rows of c are slots, else the sums run over them. All lanes of a warp take part.
template <bool SLOTS> struct Walk {
    const ExpertArgs &a;
    const i32 *ends; // of SLOTS
    i32 item, row, col;
    GemmArgs gemm; // of the expert's slots

    APR_METHOD i32 deep() const { return SLOTS || gemm.k > 0 ? gemm.k : 1; } // without slots one stage of zeros passes

    APR_METHOD bool next() {
        const i32 wide = (a.gemm.n + WIDE - 1) / WIDE;
        if constexpr (SLOTS) {
            const i32 tile = item / wide;
            i32 expert = 0; // as many as end before
            NO_UNROLL for (i32 base = 0; base < a.experts; base += 32)
                expert += popcount(ballot(base + (i32)lane() < a.experts && ends[base + lane()] <= tile));
            if (expert >= a.experts) return false;
            gemm = shift<2>(a, slots_of(a, expert));
            row = (tile - (expert ? ends[expert - 1] : 0)) * HIGH, col = item % wide * WIDE;
            item += blocks();
            return true;
        }
        const i32 each = (a.gemm.m + HIGH - 1) / HIGH * wide;
        NO_UNROLL for (; item < a.experts * each; item += blocks()) {
            const Share s = slots_of(a, item / each);
            if (s.rows == 0 && a.gemm.flags & GEMM_ADD) continue;
            gemm = shift_sums<2>(a, s);
            row = item % each / wide * HIGH, col = item % wide * WIDE;
            item += blocks();
            return true;
        }
        return false;
    }
};

// Source is one operand as a thread that fetches sees it: every 16th row of a tile of SIZE rows of c, or of 64 inner positions, and of each
// (in each panel) one chunk.
template <bool KMAJOR, int SIZE> struct Source {
    static constexpr int STEP = WARPGROUP / 8;
    const bf16 *from;
    i64 stride;
    i32 row, col, rows, cols; // its place in the operand as stored, and the end
    u32 to;

    APR_METHOD void begin(const void *p, i64 ld, i32 mn, i32 k, i32 first) {
        const i32 r = (i32)thread() / 8, c = (i32)thread() % 8;
        row = r + (KMAJOR ? first : 0), col = c * 8 + (KMAJOR ? 0 : first);
        rows = KMAJOR ? mn : k, cols = KMAJOR ? k : mn;
        stride = ld, from = (const bf16 *)p + row * ld + col;
        to = r * 128 + ((c ^ r % 8) << 4);
    }
    APR_METHOD void fetch(u32 tile) {
        const bf16 *p = from;
        if constexpr (KMAJOR) {
            const i32 left = col < cols ? rows - row : 0;
            UNROLL for (int n = 0; n < SIZE; n += STEP, p += STEP * stride) fetch16(tile + to + n * 128, p, n < left);
            col += DEEP, from += DEEP;
        } else {
            UNROLL for (int n = 0; n < DEEP; n += STEP, p += STEP * stride)
                UNROLL for (int c = 0; c < SIZE; c += 64)
                    fetch16(tile + to + c / 64 * PANEL + n * 128, p + c, row + n < rows && col + c < cols);
            row += DEEP, from += DEEP * stride;
        }
    }
};

// announce says that a stage is there, when at most N younger ones are on their way.
template <int N> APR_DEVICE void announce(const Ring &ring, u32 place) {
    copy_async_wait<N>();
    publish();
    sync_warp();
    if (lane() == 0) barrier_arrive(ring.full(place));
}

// fetch_all is what a warpgroup does that only fetches. Two stages are on their way while a third is begun.
template <bool AK, bool BK> APR_DEVICE void fetch_all(const Ring &ring, Walk<AK> &walk) {
    Places at = {0, 0}, oldest = {0, 0}; // oldest: that is on its way
    u32 pending = 0;
    while (walk.next()) {
        const GemmArgs &g = walk.gemm;
        const i32 deep = walk.deep();
        Source<AK, HIGH> left;
        Source<BK, WIDE> right;
        left.begin(g.a, g.lda, g.m, g.k, walk.row);
        right.begin(g.b, g.ldb, g.n, g.k, walk.col);
        NO_UNROLL for (i32 k = 0; k < deep; k += DEEP) {
            barrier_wait(ring.empty(at.at), at.parity ^ 1);
            left.fetch(ring.stage(at.at));
            right.fetch(ring.stage(at.at) + LEFT);
            copy_async_commit();
            at.next(0, STAGES);
            if (pending < 2) {
                pending++;
                continue;
            }
            announce<2>(ring, oldest.at);
            oldest.next(0, STAGES);
        }
    }
    NO_UNROLL for (; pending; pending--, oldest.next(0, STAGES)) announce<0>(ring, oldest.at);
}

// turn gives each of four lanes the four words that all have at its place: w[i] of lane j comes from w[j] of lane i.
APR_DEVICE void turn(u32 (&w)[4]) {
    const bool odd = lane() & 1, high = lane() & 2;
    UNROLL for (int i = 0; i < 4; i += 2) {
        const u32 x = w[i], y = w[i + 1], got = shfl_xor(odd ? x : y, 1);
        w[i] = odd ? got : x, w[i + 1] = odd ? y : got;
    }
    UNROLL for (int i = 0; i < 2; i++) {
        const u32 x = w[i], y = w[i + 2], got = shfl_xor(high ? x : y, 2);
        w[i] = high ? got : x, w[i + 2] = high ? y : got;
    }
}

// add_bias adds an expert's bias to a thread's sums, of columns from `col` on.
APR_DEVICE void add_bias(const GemmArgs &a, float (&d)[128], i32 col) {
    UNROLL for (int i = 0; i < 128; i += 4) {
        if (col + 2 * i >= a.n) continue;
        const float x = a.bias[col + 2 * i], y = a.bias[col + 2 * i + 1];
        d[i] += x, d[i + 1] += y, d[i + 2] += x, d[i + 3] += y;
    }
}

// write writes a warp's sums, of 16 rows from `row` and 256 columns from `col` on, to c of bfloat16, or adds them to it.
APR_DEVICE void write(const GemmArgs &a, const float (&d)[128], i32 row, i32 col) {
    row += (i32)lane() / 4;
    const i32 place = (i32)lane() % 4;
    UNROLL for (int e = 0; e < 2; e++, row += 8) {
        const bool there = row < a.m;
        bf16 *p = (bf16 *)a.c + row * a.ldc + col;
        UNROLL for (int j = 0; j < 128; j += 16) { // 32 columns
            u32 w[4];
            UNROLL for (int i = 0; i < 4; i++) w[i] = pack_bf16(d[j + 4 * i + 2 * e], d[j + 4 * i + 2 * e + 1]);
            turn(w);
            const i32 c = 2 * j + 8 * place;
            if (there && col + c < a.n) store16(p + c, u32x4{w[0], w[1], w[2], w[3]});
        }
    }
}

// add_old adds what c has already to a thread's sums.
APR_DEVICE void add_old(const GemmArgs &a, float (&d)[128], i32 row, i32 col) {
    row += (i32)lane() / 4, col += (i32)lane() % 4 * 2;
    UNROLL for (int e = 0; e < 2; e++, row += 8) {
        const bf16 *p = (const bf16 *)a.c + row * a.ldc + col;
        UNROLL for (int i = 0; i < 128; i += 4) {
            const u32 old = row < a.m && col + 2 * i < a.n ? *(const u32 *)(p + 2 * i) : 0;
            d[i + 2 * e] += from_bits(old << 16), d[i + 2 * e + 1] += from_bits(old & 0xffff0000u);
        }
    }
}

// write_floats is write to c of float.
APR_DEVICE void write_floats(const GemmArgs &a, const float (&d)[128], i32 row, i32 col) {
    row += (i32)lane() / 4, col += (i32)lane() % 4 * 2;
    UNROLL for (int e = 0; e < 2; e++, row += 8) {
        if (row >= a.m) continue;
        float *p = (float *)a.c + row * a.ldc + col;
        UNROLL for (int j = 0; j < 128; j += 32) {
            f32x2 old[8] = {};
            if (a.flags & GEMM_ADD)
                UNROLL for (int i = 0; i < 8; i++)
                    if (col + 2 * j + 8 * i < a.n) old[i] = *(const f32x2 *)(p + 2 * j + 8 * i);
            UNROLL for (int i = 0; i < 8; i++)
                if (col + 2 * j + 8 * i < a.n) *(f32x2 *)(p + 2 * j + 8 * i) = f32x2{d[j + 4 * i + 2 * e], d[j + 4 * i + 2 * e + 1]} + old[i];
        }
    }
}

// multiply_all is what the other two warpgroups do.
template <bool AK, bool BK> APR_DEVICE void multiply_all(const Ring &ring, Walk<AK> &walk) {
    const u32 group = thread() / WARPGROUP - 1;
    Places at = {0, 0};
    float d[128] = {}; // defined once, or the compiler would separate the instructions
    while (walk.next()) {
        const GemmArgs &g = walk.gemm;
        const i32 deep = walk.deep();
        const i32 row = walk.row + (i32)group * 64;
        if (row >= g.m) {
            NO_UNROLL for (i32 k = 0; k < deep; k += DEEP, at.next(0, STAGES)) {
                barrier_wait(ring.full(at.at), at.parity);
                if (lane() == 0) barrier_arrive(ring.empty(at.at));
            }
            continue;
        }
        u32 before = STAGES; // the stage that products still read
        NO_UNROLL for (i32 k = 0; k < deep; k += DEEP, at.next(0, STAGES)) {
            const u32 stage = ring.stage(at.at);
            barrier_wait(ring.full(at.at), at.parity);
            multiply<AK, BK>(d, operand(stage + group * PANEL), operand(stage + LEFT), k);
            if (lane() == 0 && before < STAGES) barrier_arrive(ring.empty(before));
            before = at.at;
        }
        wait_products<0>(d);
        if (lane() == 0 && before < STAGES) barrier_arrive(ring.empty(before));
        const i32 first = row + (i32)(warp() & 3) * 16;
        if (AK && BK && g.bias) add_bias(g, d, walk.col + (i32)lane() % 4 * 2);
        if (AK && !BK && g.flags & GEMM_ADD) add_old(g, d, first, walk.col);
        if constexpr (AK) write(g, d, first, walk.col);
        else write_floats(g, d, first, walk.col);
    }
}

// Grid: as many blocks as run at once. Shared: 1024 bytes to align, the stages, the barriers.
template <bool AK, bool BK> APR_DEVICE void experts(const ExpertArgs &a) {
    DYNAMIC_SHARED(memory);
    SHARED(i32, ends, EXPERTS);
    Ring ring;
    ring.place(memory);
    if (thread() == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(ring.full(i), WARPGROUP / 32);
            barrier_init(ring.empty(i), 2 * WARPGROUP / 32);
        }
    }
    if (AK && warp() == 1) count_tiles(a, ends);
    sync_block();
    Walk<AK> walk = {a, ends, (i32)block(), 0, 0, {}};
    if (thread() < WARPGROUP) {
        shrink_registers<72>();
        fetch_all<AK, BK>(ring, walk);
    } else {
        grow_registers<216>();
        multiply_all<AK, BK>(ring, walk);
    }
}

KERNEL(experts_sm90_nt, ExpertArgs, 384, 1) { experts<true, true>(a); }
KERNEL(experts_sm90_nn, ExpertArgs, 384, 1) { experts<true, false>(a); }
KERNEL(experts_sm90_tn, ExpertArgs, 384, 1) { experts<false, false>(a); }
