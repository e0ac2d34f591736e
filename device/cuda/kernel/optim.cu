// optim.cu: the norm of all gradients and its verdict, and AdamW, over a table of pieces of parameters.
//
//	optim_norm     per piece: Σ g² in float64                            reads 4 bytes per parameter
//	optim_verdict  one block adds the pieces in a fixed order; loss, norm, clip scale and verdict to the record
//	optim_factors  one thread turns the record into AdamW's factors
//	optim_adamw    per part of a piece: the update      reads 16, writes 12 bytes per parameter, 14 with a bfloat16 copy
//
// The order of sums depends on the table alone. Squares are float64, so that no gradient overflows or vanishes.
//apr:module target=sm_80 types=bf16,f32 roles=train
#include "apr.cuh"

enum { THREADS = 256, FINISH = 1024 };

// PIECE is the most elements of a piece. Of these a block of optim_adamw takes PART, each thread FOURS times four: all its
// loads are under way at once, and blocks that run at one time stand side by side in memory.
enum { PIECE = 16384, FOURS = 2, PART = FOURS * 4 * THREADS, PARTS = PIECE / PART };

// Piece is a run of a parameter; the Go struct of the same members is kernel.ParamPiece.
struct Piece {
    float *w, *g, *m, *v;
    bf16 *copy; // what matrix products read, or 0
    u32 n, decay;
};

// Factors are AdamW's numbers of one step, in the order of their use.
struct Factors {
    float scale, beta1, rest1, beta2, rest2, inv_bias, eps, decay, step;
    u32 apply; // 0: the verdict refused the step
};

struct NormArgs {
    const Piece *pieces;
    double *sums; // [pieces]
    Record *record;
    i64 n; // pieces
};

struct AdamWArgs {
    const Piece *pieces;
    Factors *factors;
    const Record *record;
    double beta1, beta2, eps, weight_decay;
};

static_assert(sizeof(Piece) == 48 && sizeof(Factors) == 40 && sizeof(NormArgs) == 32 && sizeof(AdamWArgs) == 56, "as in optim.go");

APR_DEVICE double square(float x) { return (double)x * (double)x; }

// squares adds the squares of the four floats at p.
APR_DEVICE double squares(const float *p) {
    u32x4 x = load16(p);
    return (square(from_bits(x[0])) + square(from_bits(x[1]))) + (square(from_bits(x[2])) + square(from_bits(x[3])));
}

KERNEL(optim_norm, NormArgs, THREADS, 4) {
    const Piece p = a.pieces[block()];
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    u32 i = thread() * 4;
    for (; i + 12 * THREADS + 4 <= p.n; i += 16 * THREADS) {
        s0 += squares(p.g + i);
        s1 += squares(p.g + i + 4 * THREADS);
        s2 += squares(p.g + i + 8 * THREADS);
        s3 += squares(p.g + i + 12 * THREADS);
    }
    for (; i + 4 <= p.n; i += 4 * THREADS) s0 += squares(p.g + i);
    for (; i < p.n; i++) s1 += square(p.g[i]); // one thread's last three at most
    SHARED(double, part, 33);
    double sum = block_sum((s0 + s1) + (s2 + s3), part);
    if (thread() == 0) a.sums[block()] = sum;
}

APR_DEVICE bool finite(double x) { return x - x == 0; }

KERNEL(optim_verdict, NormArgs, FINISH, 1) {
    double sum = 0;
    for (i64 i = thread(); i < a.n; i += FINISH) sum += a.sums[i];
    SHARED(double, part, 33);
    double norm = sqrt_rn(block_sum(sum, part));
    if (thread() != 0) return;
    Record *r = a.record;
    double scale = r->max_norm > 0 ? r->max_norm / (norm + 1e-6) : 1;
    r->loss = r->ce_weight * (r->ce * r->inv_n) + r->d_weight * (r->d * r->inv_n);
    r->grad_norm = norm;
    r->scale = scale < 1 ? scale : 1;
    r->finite = r->fault == 0 && finite(r->ce) && finite(r->d) && finite(norm);
    for (int i = 0; i < OBJECTIVES; i++) {
        if (r->weights[i] != 0) r->loss += r->weights[i] * (r->sums[i] * r->inv_n);
        r->finite = r->finite && finite(r->sums[i]);
    }
    r->diverged = r->finite && r->max_loss > 0 && r->loss > r->max_loss;
}

KERNEL(optim_factors, AdamWArgs, 32, 1) {
    if (thread() != 0) return;
    const Record *r = a.record;
    Factors f;
    f.scale = (float)r->scale;
    f.beta1 = (float)a.beta1;
    f.rest1 = (float)(1 - a.beta1);
    f.beta2 = (float)a.beta2;
    f.rest2 = (float)(1 - a.beta2);
    f.inv_bias = (float)(1 / sqrt_rn(r->bias2));
    f.eps = (float)a.eps;
    f.decay = (float)(1 - r->lr * a.weight_decay);
    f.step = (float)(r->lr / r->bias1);
    f.apply = r->finite && !r->diverged;
    *a.factors = f;
}

// update is AdamW for one element, every product and sum rounded to float32:
// m = β₁m+(1−β₁)sg; v = β₂v+(1−β₂)(sg)²; w = w·decay − step·m/(√v·inv_bias+ε).
APR_DEVICE void update(const Factors &f, float decay, float &w, float g, float &m, float &v) {
    float gs = mul_rn(g, f.scale);
    m = mul_rn(f.beta1, m) + mul_rn(f.rest1, gs);
    v = mul_rn(f.beta2, v) + mul_rn(mul_rn(f.rest2, gs), gs);
    float root = mul_rn(sqrt_rn(v), f.inv_bias) + f.eps;
    w = mul_rn(w, decay) - mul_rn(f.step, m) / root;
}

APR_DEVICE void update4(const Factors &f, float decay, u32x4 &w, u32x4 g, u32x4 &m, u32x4 &v) {
    UNROLL for (int j = 0; j < 4; j++) {
        float x = from_bits(w[j]), y = from_bits(m[j]), z = from_bits(v[j]);
        update(f, decay, x, from_bits(g[j]), y, z);
        w[j] = bits(x);
        m[j] = bits(y);
        v[j] = bits(z);
    }
}

KERNEL(optim_adamw, AdamWArgs, THREADS, 4) {
    const Piece p = a.pieces[block() / PARTS];
    const u32 part = block() % PARTS * PART, first = part + thread() * 4;
    u32x4 w[FOURS], g[FOURS], m[FOURS], v[FOURS];
    UNROLL for (int k = 0; k < FOURS; k++) {
        u32 i = first + k * 4 * THREADS;
        if (i + 4 > p.n) continue;
        w[k] = stream_load16(p.w + i);
        g[k] = stream_load16(p.g + i);
        m[k] = stream_load16(p.m + i);
        v[k] = stream_load16(p.v + i);
    }
    const Factors f = *a.factors; // on the way together with the rest
    if (!f.apply) return;
    float decay = p.decay ? f.decay : 1;
    UNROLL for (int k = 0; k < FOURS; k++) {
        u32 i = first + k * 4 * THREADS;
        if (i + 4 > p.n) continue;
        update4(f, decay, w[k], g[k], m[k], v[k]);
        stream_store16(p.w + i, w[k]);
        stream_store16(p.m + i, m[k]);
        stream_store16(p.v + i, v[k]);
        if (p.copy) {
            stream_store8(p.copy + i, u32x2{pack_bf16(from_bits(w[k][0]), from_bits(w[k][1])), pack_bf16(from_bits(w[k][2]), from_bits(w[k][3]))});
        }
    }
    u32 i = p.n / 4 * 4 + thread(); // the piece's last three at most
    if (i < p.n && i / PART * PART == part) {
        update(f, decay, p.w[i], p.g[i], p.m[i], p.v[i]);
        if (p.copy) store(p.copy + i, p.w[i]);
    }
}
