// project.cu: distributions moved to the ids of another vocabulary, y[rows[r], s] = T·max(ln Σ_k W[k,s]·p[r,k], −80) with
// p = softmax(t/T). See project.go.
//
// Neighbouring columns of W read ids that are anywhere, and memory gives no less than a sector of 32 bytes. So ROWS rows are
// interleaved first: a sector has one id's logits in all of them. project_turn reads t once, in order, writes u [n/ROWS, teacher,
// ROWS], and notes maximum and sum of each slice of a row. project_states makes of these a row's maximum m and T·ln S,
// S = Σe^{(t−m)/T}. project_columns has a thread for each column: with one entry, y = (t−m) − T·ln S + T·ln w, in which no probability
// vanishes; sums of more are of w·e^{(t−m)/T}.
//
// Where the other vocabulary is smaller, a few columns, as of single bytes, have thousands of entries. Columns of more than FEW
// are summed by a warp, of more than LOTS by the block. Every sum has one order.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"

enum { THREADS = 256, ROWS = THREADS / 32, TILE = 512, PITCH = TILE + 4, SLICE = 4 * TILE, FEW = 4, LOTS = 512 };
constexpr float LOWEST = -3.4028234e38f; // finite, so that −∞ is as far below it as below anything

struct ProjectArgs {
    float *y;
    const float *t;
    const i32 *rows, *starts, *ids;
    const float *weights;
    float *u;     // [groups, teacher, ROWS]
    f32x2 *parts; // [groups, slices, ROWS]: maximum and sum of a slice
    f32x2 *state; // [groups, ROWS]: m and T·ln S of each row
    Record *record;
    i64 y_stride, t_stride, row_stride;
    u32 n, y_rows;               // rows of t, of y
    u32 cols, teacher, entries;  // columns of W, its rows, its entries
    u32 slices, vector;          // vector: all rows of t start at multiples of 16 bytes
    float k, temperature, floor; // log₂e/T, T, −80·T
};

// log2_of is the binary logarithm of x ≥ 0, its whole part apart, lest it take bits of the other. What float32 has no normal
// number for counts as 0.
struct Logarithm {
    float whole, part;
};
APR_DEVICE Logarithm log2_of(float x) {
    const u32 b = bits(x), e = b >> 23;
    if (e - 1 >= 254) return {0, e == 0 ? -INFINITY_F : x}; // 0; ∞ and NaN, which stay
    return {(float)(i32)e - 127, log2_approx(from_bits((b & 0x7fffffu) | 0x3f800000u))};
}

// four reads columns c to c+3 of a row, of which those from `cols` on are −∞.
APR_DEVICE f32x4 four(const float *t, u32 c, u32 cols, u32 vector) {
    if (vector && c + 4 <= cols) return __builtin_bit_cast(f32x4, load16(t + c));
    f32x4 v;
    UNROLL for (u32 e = 0; e < 4; e++) v[e] = c + e < cols ? t[c + e] : -INFINITY_F;
    return v;
}

// A block takes a slice of ROWS rows, a warp one of them; behind the last row it is that row again. A lane's sum follows its
// maximum so far. A NaN makes the sum one.
KERNEL(project_turn, ProjectArgs, THREADS, 4) {
    SHARED(float, tile, ROWS * PITCH);
    const u32 group = block_y(), row = group * ROWS + warp();
    const float *t = a.t + (row < a.n ? row : a.n - 1) * a.t_stride;
    float *u = a.u + (i64)group * a.teacher * ROWS;
    float m = LOWEST;
    double sum = 0;
    for (u32 first = block() * SLICE; first < (block() + 1) * SLICE && first < a.teacher; first += TILE) {
        f32x4 v[4];
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = four(t, first + 4 * (32 * i + lane()), a.teacher, a.vector);
        float top = m;
        UNROLL for (u32 i = 0; i < 4; i++) top = max2(top, max2(max2(v[i][0], v[i][1]), max2(v[i][2], v[i][3])));
        if (top > m) {
            sum *= exp2_approx(mul_rn(m - top, a.k));
            m = top;
        }
        float s = 0;
        UNROLL for (u32 i = 0; i < 4; i++) {
            UNROLL for (u32 e = 0; e < 4; e++) s += exp2_approx(mul_rn(v[i][e] - m, a.k));
        }
        sum += s;
        sync_block(); // the tile before was read
        UNROLL for (u32 i = 0; i < 4; i++)
            store16(tile + warp() * PITCH + 4 * (32 * i + lane()), __builtin_bit_cast(u32x4, v[i]));
        sync_block();
        UNROLL for (u32 i = 0; i < 2 * TILE / THREADS; i++) {
            const u32 at = (i * THREADS + thread()) / 2, half = thread() % 2 * 4;
            const f32x4 w = {tile[half * PITCH + at], tile[(half + 1) * PITCH + at], tile[(half + 2) * PITCH + at], tile[(half + 3) * PITCH + at]};
            if (first + at < a.teacher) store16(u + (i64)(first + at) * ROWS + half, __builtin_bit_cast(u32x4, w));
        }
    }
    const float all = warp_max(m);
    sum = warp_sum(sum * exp2_approx(mul_rn(m - all, a.k)));
    if (lane() == 0) a.parts[((i64)group * a.slices + block()) * ROWS + warp()] = f32x2{all, (float)sum};
}

// A block takes ROWS rows, a warp one of them.
KERNEL(project_states, ProjectArgs, THREADS, 1) {
    const f32x2 *parts = a.parts + (i64)block() * a.slices * ROWS + warp();
    float m = LOWEST;
    for (u32 i = lane(); i < a.slices; i += 32) m = max2(m, parts[i * ROWS][0]);
    m = warp_max(m);
    double sum = 0;
    for (u32 i = lane(); i < a.slices; i += 32) {
        const f32x2 p = parts[i * ROWS];
        sum += (double)(p[1] * exp2_approx(mul_rn(p[0] - m, a.k)));
    }
    sum = warp_sum(sum);
    if (lane() != 0) return;
    const Logarithm s = log2_of((float)sum);
    a.state[block() * ROWS + warp()] = f32x2{m, (float)((double)a.temperature * 0.6931471805599453 * ((double)s.whole + s.part))};
}

// id_of returns the id of an entry.
APR_DEVICE u32 id_of(const ProjectArgs &a, u32 entry) {
    const i32 id = a.ids[entry];
    if ((u32)id < a.teacher) return (u32)id;
    first_fault(a.record, 1, id, a.teacher);
    return 0;
}

// Logits are those of one id in all rows of a group.
struct Logits {
    float t[ROWS];
};
APR_DEVICE Logits logits_of(const float *u, u32 id) {
    Logits o;
    UNROLL for (u32 r = 0; r < ROWS; r += 4) {
        const u32x4 v = load16(u + (i64)id * ROWS + r);
        UNROLL for (u32 e = 0; e < 4; e++) o.t[r + e] = from_bits(v[e]);
    }
    return o;
}

// add adds an entry's w·e^{(t−m)/T} to the sums of all rows.
APR_DEVICE void add(const ProjectArgs &a, const float *u, const float (&m)[ROWS], float (&sum)[ROWS], u32 entry) {
    const Logits x = logits_of(u, id_of(a, entry));
    const float w = a.weights[entry];
    UNROLL for (u32 r = 0; r < ROWS; r++) sum[r] = fma_rn(w, exp2_approx(mul_rn(x.t[r] - m[r], a.k)), sum[r]);
}

// put writes column c of a row, if there is that row. NaN is not below the floor.
APR_DEVICE void put(const ProjectArgs &a, float *y, u32 c, float v) {
    if (y) y[c] = v < a.floor ? a.floor : v;
}

// put_sum writes T·(ln sum − ln S), of which `shift` is T·ln S.
APR_DEVICE void put_sum(const ProjectArgs &a, float *y, u32 c, float sum, float shift) {
    const Logarithm s = log2_of(sum);
    put(a, y, c, a.temperature * LN2 * (s.whole + s.part) - shift);
}

KERNEL(project_columns, ProjectArgs, THREADS, 4) {
    SHARED(float *, y, ROWS); // where the rows begin in y; none: there is no such row
    SHARED(f32x2, state, ROWS);
    SHARED(u32, lots, THREADS / 32);
    SHARED(float, part, THREADS / 32 * ROWS);
    const u32 base = block() * THREADS, c = base + thread();
    const float *u = a.u + (i64)block_y() * a.teacher * ROWS;
    if (thread() < ROWS) {
        const u32 row = block_y() * ROWS + thread();
        float *to = nullptr;
        if (row < a.n) {
            const i32 at = a.rows[row * a.row_stride];
            if ((u32)at < a.y_rows) to = a.y + at * a.y_stride;
            else if (block() == 0) first_fault(a.record, 3, at, a.y_rows);
        }
        y[thread()] = to;
        state[thread()] = a.state[row];
    }
    sync_block();
    float m[ROWS];
    UNROLL for (u32 r = 0; r < ROWS; r++) m[r] = state[r][0];

    u32 from = 0, to = 0;
    if (c < a.cols) {
        from = (u32)a.starts[c];
        to = (u32)a.starts[c + 1];
        if (from > to || to > a.entries) {
            first_fault(a.record, 1, (i32)to, a.entries + 1);
            from = to = 0;
        }
    }
    const u32 n = to - from;
    if (n == 0 && c < a.cols) {
        UNROLL for (u32 r = 0; r < ROWS; r++) put(a, y[r], c, a.floor);
    } else if (n == 1) {
        const Logits x = logits_of(u, id_of(a, from));
        const float w = a.weights[from], ln_w = w == 1 ? 0 : a.temperature * LN2 * log2_approx(w);
        UNROLL for (u32 r = 0; r < ROWS; r++) put(a, y[r], c, (x.t[r] - m[r]) - state[r][1] + ln_w);
    } else if (n > 0 && n <= FEW) {
        float sum[ROWS] = {};
        for (u32 k = from; k < to; k++) add(a, u, m, sum, k);
        UNROLL for (u32 r = 0; r < ROWS; r++) put_sum(a, y[r], c, sum[r], state[r][1]);
    }
    for (u32 left = ballot(n > FEW && n <= LOTS); left; left &= left - 1) {
        const int of = __builtin_ctz(left);
        const u32 end = shfl(to, of);
        float sum[ROWS] = {};
        for (u32 k = shfl(from, of) + lane(); k < end; k += 32) add(a, u, m, sum, k);
        UNROLL for (u32 r = 0; r < ROWS; r++) {
            const float all = warp_sum(sum[r]);
            if (lane() == r) put_sum(a, y[r], base + 32 * warp() + of, all, state[r][1]);
        }
    }
    const u32 mine = ballot(n > LOTS);
    if (lane() == 0) lots[warp()] = mine;
    sync_block();
    for (u32 w = 0; w < THREADS / 32; w++) {
        for (u32 left = lots[w]; left; left &= left - 1) {
            const u32 column = base + 32 * w + __builtin_ctz(left), end = (u32)a.starts[column + 1];
            float sum[ROWS] = {};
            for (u32 k = (u32)a.starts[column] + thread(); k < end; k += THREADS) add(a, u, m, sum, k);
            UNROLL for (u32 r = 0; r < ROWS; r++) {
                const float all = warp_sum(sum[r]);
                if (lane() == 0) part[warp() * ROWS + r] = all;
            }
            sync_block();
            if (thread() < ROWS) {
                float all = 0;
                UNROLL for (u32 i = 0; i < THREADS / 32; i++) all += part[i * ROWS + thread()];
                put_sum(a, y[thread()], column, all, state[thread()][1]);
            }
            sync_block();
        }
    }
}
