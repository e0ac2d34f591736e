// project.cu: distributions moved to the ids of another vocabulary, y[rows[r], s] = T·max(ln Σ_k W[k,s]·p[r,k], −80) with
// p = softmax(t/T). See project.go.
//
// project_rows reads each row for its maximum m and T·ln S, S = Σe^{(t−m)/T}. project_columns has a thread for each column of W
// and ROWS rows of t: with one entry, y = (t−m) − T·ln S + T·ln w, in which no probability vanishes; sums of more are of
// w·e^{(t−m)/T}. Blocks of the same rows are neighbours in the grid, so that these rows stay in the second cache while all
// columns read from them: ids of neighbouring columns are anywhere, and each of their values is a sector of 32 bytes.
//
// Where the other vocabulary is smaller, a few columns, as of single bytes, have thousands of entries. Columns of more than FEW
// are summed by a warp, of more than LOTS by the block. Every sum has one order.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"

enum { ROW_THREADS = 512, ROW_WARPS = ROW_THREADS / 32, THREADS = 256, WARPS = THREADS / 32, ROWS = 4, FEW = 4, LOTS = 512 };
constexpr float LOWEST = -3.4028234e38f; // finite, so that −∞ is as far below it as below anything

struct ProjectArgs {
    float *y;
    const float *t;
    const i32 *rows, *starts, *ids;
    const float *weights;
    f32x2 *state; // [n]: m and T·ln S of each row
    Record *record;
    i64 y_stride, t_stride, row_stride;
    u32 n, y_rows;              // rows of t, of y
    u32 cols, teacher, entries; // columns of W, its rows, its entries
    u32 vector;                 // all rows of t start at multiples of 16 bytes
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

// A block takes a row and reads it once: a thread's sum follows its maximum so far. A NaN makes the sum one.
KERNEL(project_rows, ProjectArgs, ROW_THREADS, 2) {
    SHARED(float, tops, ROW_WARPS);
    SHARED(double, part, 33);
    const float *t = a.t + block() * a.t_stride;
    float m = LOWEST;
    double sum = 0;
    for (u32 c = 4 * thread(); c < a.teacher; c += 16 * ROW_THREADS) {
        f32x4 v[4];
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = four(t, c + 4 * i * ROW_THREADS, a.teacher, a.vector);
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
    }
    const float own = m;
    m = warp_max(m);
    if (lane() == 0) tops[warp()] = m;
    sync_block();
    m = warp_max(lane() < ROW_WARPS ? tops[lane()] : LOWEST);
    const float all = (float)block_sum(sum * exp2_approx(mul_rn(own - m, a.k)), part);
    if (thread() != 0) return;
    const Logarithm s = log2_of(all);
    a.state[block()] = f32x2{m, (float)((double)a.temperature * 0.6931471805599453 * ((double)s.whole + s.part))};
}

// Rows are those of a block: where its rows of t begin, of y (none: there is no such row), and their m and T·ln S.
struct Rows {
    const float *t[ROWS];
    float *y[ROWS];
    float m[ROWS], c[ROWS];
};

APR_DEVICE Rows rows_of(const ProjectArgs &a, u32 first) {
    Rows o;
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        const u32 row = first + r < a.n ? first + r : a.n - 1;
        const i32 at = a.rows[row * a.row_stride];
        const f32x2 s = a.state[row];
        o.t[r] = a.t + row * a.t_stride;
        o.m[r] = s[0];
        o.c[r] = s[1];
        const bool there = (u32)at < a.y_rows;
        o.y[r] = first + r < a.n && there ? a.y + at * a.y_stride : nullptr;
        if (!there && block() == 0 && thread() == 0) first_fault(a.record, 3, at, a.y_rows);
    }
    return o;
}

// id_of returns the id of an entry.
APR_DEVICE u32 id_of(const ProjectArgs &a, u32 entry) {
    const i32 id = a.ids[entry];
    if ((u32)id < a.teacher) return (u32)id;
    first_fault(a.record, 1, id, a.teacher);
    return 0;
}

// add adds an entry's w·e^{(t−m)/T} to the sums of all rows.
APR_DEVICE void add(const ProjectArgs &a, const Rows &rows, float (&sum)[ROWS], u32 entry) {
    const u32 id = id_of(a, entry);
    const float w = a.weights[entry];
    UNROLL for (u32 r = 0; r < ROWS; r++) sum[r] = fma_rn(w, exp2_approx(mul_rn(rows.t[r][id] - rows.m[r], a.k)), sum[r]);
}

// put writes column c of a row. NaN is not below the floor.
APR_DEVICE void put(const ProjectArgs &a, float *y, u32 c, float v) {
    if (y) y[c] = v < a.floor ? a.floor : v;
}

// put_sum writes T·(ln sum − ln S), of which `shift` is T·ln S.
APR_DEVICE void put_sum(const ProjectArgs &a, float *y, u32 c, float sum, float shift) {
    const Logarithm s = log2_of(sum);
    put(a, y, c, a.temperature * LN2 * (s.whole + s.part) - shift);
}

KERNEL(project_columns, ProjectArgs, THREADS, 4) {
    SHARED(u32, lots, WARPS);
    SHARED(float, part, WARPS * ROWS);
    const u32 base = block() * THREADS, c = base + thread();
    const Rows rows = rows_of(a, block_y() * ROWS);
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
        UNROLL for (u32 r = 0; r < ROWS; r++) put(a, rows.y[r], c, a.floor);
    } else if (n == 1) {
        const u32 id = id_of(a, from);
        const float w = a.weights[from];
        float v[ROWS];
        UNROLL for (u32 r = 0; r < ROWS; r++) v[r] = rows.t[r][id];
        const float ln_w = w == 1 ? 0 : a.temperature * LN2 * log2_approx(w);
        UNROLL for (u32 r = 0; r < ROWS; r++) put(a, rows.y[r], c, (v[r] - rows.m[r]) - rows.c[r] + ln_w);
    } else if (n > 0 && n <= FEW) {
        float sum[ROWS] = {};
        for (u32 k = from; k < to; k++) add(a, rows, sum, k);
        UNROLL for (u32 r = 0; r < ROWS; r++) put_sum(a, rows.y[r], c, sum[r], rows.c[r]);
    }
    for (u32 left = ballot(n > FEW && n <= LOTS); left; left &= left - 1) {
        const int of = __builtin_ctz(left);
        const u32 end = shfl(to, of);
        float sum[ROWS] = {};
        for (u32 k = shfl(from, of) + lane(); k < end; k += 32) add(a, rows, sum, k);
        UNROLL for (u32 r = 0; r < ROWS; r++) {
            const float all = warp_sum(sum[r]);
            if (lane() == r) put_sum(a, rows.y[r], base + 32 * warp() + of, all, rows.c[r]);
        }
    }
    const u32 mine = ballot(n > LOTS);
    if (lane() == 0) lots[warp()] = mine;
    sync_block();
    for (u32 w = 0; w < WARPS; w++) {
        for (u32 left = lots[w]; left; left &= left - 1) {
            const u32 column = base + 32 * w + __builtin_ctz(left), end = (u32)a.starts[column + 1];
            float sum[ROWS] = {};
            for (u32 k = (u32)a.starts[column] + thread(); k < end; k += THREADS) add(a, rows, sum, k);
            UNROLL for (u32 r = 0; r < ROWS; r++) {
                const float all = warp_sum(sum[r]);
                if (lane() == 0) part[warp() * ROWS + r] = all;
            }
            sync_block();
            UNROLL for (u32 r = 0; r < ROWS; r++) {
                if (thread() != r) continue;
                float all = 0;
                UNROLL for (u32 i = 0; i < WARPS; i++) all += part[i * ROWS + r];
                put_sum(a, rows.y[r], column, all, rows.c[r]);
            }
            sync_block();
        }
    }
}
