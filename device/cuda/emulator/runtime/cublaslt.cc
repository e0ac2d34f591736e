// cublaslt.cc: matrix products with the interface of cublasLt, in plain loops on the emulator's streams.
#include "driver.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum { success = 0, not_initialised = 1, invalid_value = 7, execution_failed = 13, not_supported = 15 };
enum { type_f32 = 0, type_bf16 = 14 };
enum { compute_f32 = 68, compute_tf32 = 77 };

struct Desc {
    int compute, trans[2], epilogue, bias_type; // bias_type −1: that of D
    const void *bias;
};

struct Layout {
    int type, order; // order 0: columns are contiguous, 1: rows
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
};

struct Preference {
    uint64_t workspace;
    uint32_t reduction, align[4];
};

// Algo is the emulator's content of cublasLtMatmulAlgo_t.
struct Algo {
    uint32_t config[9]; // by attribute
    uint32_t align;     // of all operands
    uint64_t workspace;
    uint64_t rest[2];
};
static_assert(sizeof(Algo) == 64, "the size of cublasLtMatmulAlgo_t");

struct Candidate {
    Algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Candidate) == 96, "the size of cublasLtMatmulHeuristicResult_t");

size_t size_of(int type) { return type == type_bf16 ? 2 : 4; }

// Call is a product that waits in a stream.
struct Call {
    Desc desc;
    Layout a, b, c, d;
    const char *pa, *pb, *pc;
    char *pd;
    float alpha, beta;
    uint64_t m, n, k;
    std::vector<float> left, right; // op(A) as [k][m], op(B) as [n][k]
    int batch;
};

float widen(const char *p, int type, size_t i) {
    if (type == type_f32) return ((const float *)p)[i];
    return __builtin_bit_cast(float, (uint32_t)((const uint16_t *)p)[i] << 16);
}

void put(char *p, int type, size_t i, float v) {
    if (type == type_f32) {
        ((float *)p)[i] = v;
        return;
    }
    uint32_t u = __builtin_bit_cast(uint32_t, v);
    ((uint16_t *)p)[i] = v != v ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

float to_tf32(float v) {
    uint32_t u = __builtin_bit_cast(uint32_t, v);
    if (v != v || (u & 0x7f800000) == 0x7f800000) return v;
    return __builtin_bit_cast(float, (u + 0x1000) & ~0x1fffu);
}

size_t place(const Layout &l, uint64_t r, uint64_t c) { return l.order ? r * l.ld + c : c * l.ld + r; }

size_t extent(const Layout &l) { // elements from the first to the last of all matrices
    uint64_t lines = l.order ? l.rows : l.cols, length = l.order ? l.cols : l.rows;
    return (l.batch - 1) * l.stride + (lines - 1) * l.ld + length;
}

// gather makes out[i·cols+j] = op(M)[j][i].
void gather(std::vector<float> &out, const char *p, const Layout &l, bool trans, uint64_t rows, uint64_t cols, bool tf32) {
    out.resize(rows * cols);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++) {
            float v = widen(p, l.type, trans ? place(l, i, j) : place(l, j, i));
            out[i * cols + j] = tf32 ? to_tf32(v) : v;
        }
}

typedef float f32x8 __attribute__((vector_size(32), aligned(4)));
constexpr int tile = 32, columns = 4; // of D that are summed at once

void finish_tile(Call &c, uint64_t i0, uint64_t j0, uint64_t rows, uint64_t cols, const float (*sum)[tile]) {
    int64_t s = c.batch;
    const char *pc = c.pc + s * c.c.stride * size_of(c.c.type);
    char *pd = c.pd + s * c.d.stride * size_of(c.d.type);
    int bias_type = c.desc.bias_type < 0 ? c.d.type : c.desc.bias_type;
    for (uint64_t j = 0; j < cols; j++)
        for (uint64_t i = 0; i < rows; i++) {
            float v = c.alpha * sum[j][i];
            if (c.beta != 0) v += c.beta * widen(pc, c.c.type, place(c.c, i0 + i, j0 + j));
            if (c.desc.epilogue == 4) v += widen((const char *)c.desc.bias, bias_type, i0 + i);
            put(pd, c.d.type, place(c.d, i0 + i, j0 + j), v);
        }
}

// band computes the columns [part·columns, …) of D.
void band(void *data, int part) {
    Call &c = *(Call *)data;
    uint64_t j0 = (uint64_t)part * columns, cols = c.n - j0 < columns ? c.n - j0 : columns;
    for (uint64_t i0 = 0; i0 < c.m; i0 += tile) {
        uint64_t rows = c.m - i0 < tile ? c.m - i0 : tile;
        float sum[columns][tile] = {};
        if (rows == tile && cols == columns) {
            f32x8 v[columns][tile / 8] = {};
            for (uint64_t k = 0; k < c.k; k++) {
                const float *left = &c.left[k * c.m + i0];
                for (int j = 0; j < columns; j++) {
                    float r = c.right[(j0 + j) * c.k + k];
                    for (int i = 0; i < tile / 8; i++) v[j][i] += *(const f32x8 *)(left + 8 * i) * r;
                }
            }
            memcpy(sum, v, sizeof sum);
        } else
            for (uint64_t k = 0; k < c.k; k++)
                for (uint64_t j = 0; j < cols; j++) {
                    float r = c.right[(j0 + j) * c.k + k];
                    for (uint64_t i = 0; i < rows; i++) sum[j][i] += c.left[k * c.m + i0 + i] * r;
                }
        finish_tile(c, i0, j0, rows, cols, sum);
    }
}

bool in_memory(const void *p, const Layout &l) { return apr_emulator_readable(p, extent(l) * size_of(l.type)); }

int multiply(void *data) {
    Call &c = *(Call *)data;
    if (!in_memory(c.pa, c.a) || !in_memory(c.pb, c.b) || !in_memory(c.pd, c.d) || (c.beta != 0 && !in_memory(c.pc, c.c)))
        return apr_emulator_note(700, "cublasLtMatmul: an operand is not in one allocation");
    int bias_type = c.desc.bias_type < 0 ? c.d.type : c.desc.bias_type;
    if (c.desc.epilogue == 4 && !apr_emulator_readable(c.desc.bias, c.m * size_of(bias_type)))
        return apr_emulator_note(700, "cublasLtMatmul: the bias is not in one allocation");
    bool tf32 = c.desc.compute == compute_tf32;
    for (c.batch = 0; c.batch < c.d.batch; c.batch++) {
        gather(c.left, c.pa + c.batch * c.a.stride * size_of(c.a.type), c.a, c.desc.trans[0], c.k, c.m, tf32);
        gather(c.right, c.pb + c.batch * c.b.stride * size_of(c.b.type), c.b, c.desc.trans[1], c.n, c.k, tf32);
        apr_emulator_parallel((int)((c.n + columns - 1) / columns), band, &c);
    }
    return 0;
}

// problem checks that the layouts fit each other.
int problem(const Desc &d, const Layout &a, const Layout &b, const Layout &c, const Layout &out, Call *call) {
    uint64_t m = d.trans[0] ? a.cols : a.rows, k = d.trans[0] ? a.rows : a.cols;
    uint64_t k2 = d.trans[1] ? b.cols : b.rows, n = d.trans[1] ? b.rows : b.cols;
    if (k != k2 || out.rows != m || out.cols != n || c.rows != m || c.cols != n || !m || !n || !k) return invalid_value;
    for (const Layout *l : {&a, &b, &c, &out}) {
        if (l->ld < (int64_t)(l->order ? l->cols : l->rows) || l->batch != out.batch || l->batch < 1) return invalid_value;
        if (l->type != type_f32 && l->type != type_bf16) return not_supported;
    }
    if (a.type != b.type || c.type != out.type || (a.type == type_f32 && out.type != type_f32)) return not_supported;
    if (d.compute == compute_tf32 && a.type != type_f32) return not_supported;
    if (d.epilogue == 4 && out.order) return not_supported;
    if (call) call->m = m, call->n = n, call->k = k;
    return success;
}

template <class T> int take(T *to, const void *from, size_t size) {
    if (size != sizeof(T)) return invalid_value;
    memcpy(to, from, size);
    return success;
}

} // namespace

#define BEGIN(name) \
    if (int status = apr_emulator_enter(name)) return status

EXPORT size_t cublasLtGetVersion() { return 130000; }

EXPORT int cublasLtCreate(void **handle) {
    BEGIN("cublasLtCreate");
    if (!apr_emulator_current()) return not_initialised;
    *handle = malloc(16);
    return success;
}
EXPORT int cublasLtDestroy(void *handle) {
    BEGIN("cublasLtDestroy");
    free(handle);
    return success;
}

EXPORT int cublasLtMatmulDescCreate(Desc **d, int compute, int scale) {
    BEGIN("cublasLtMatmulDescCreate");
    if ((compute != compute_f32 && compute != compute_tf32) || scale != type_f32) return not_supported;
    *d = new Desc{compute, {0, 0}, 1, -1, nullptr};
    return success;
}
EXPORT int cublasLtMatmulDescDestroy(Desc *d) {
    BEGIN("cublasLtMatmulDescDestroy");
    delete d;
    return success;
}
EXPORT int cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *v, size_t size) {
    BEGIN("cublasLtMatmulDescSetAttribute");
    int32_t unused;
    switch (attribute) {
    case 3: case 4: {
        int op;
        if (take(&op, v, size) || op < 0 || op > 1) return invalid_value;
        d->trans[attribute - 3] = op;
        return success;
    }
    case 7: return take(&d->epilogue, v, size) || (d->epilogue != 1 && d->epilogue != 4) ? invalid_value : success;
    case 8: return take(&d->bias, v, size);
    case 15: return take(&unused, v, size);
    case 26: return take(&d->bias_type, v, size);
    }
    return invalid_value;
}

EXPORT int cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    BEGIN("cublasLtMatrixLayoutCreate");
    *l = new Layout{type, 0, rows, cols, ld, 0, 1};
    return success;
}
EXPORT int cublasLtMatrixLayoutDestroy(Layout *l) {
    BEGIN("cublasLtMatrixLayoutDestroy");
    delete l;
    return success;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(Layout *l, int attribute, const void *v, size_t size) {
    BEGIN("cublasLtMatrixLayoutSetAttribute");
    switch (attribute) {
    case 1: return take(&l->order, v, size) || l->order < 0 || l->order > 1 ? invalid_value : success;
    case 5: return take(&l->batch, v, size);
    case 6: return take(&l->stride, v, size);
    }
    return invalid_value;
}

EXPORT int cublasLtMatmulPreferenceCreate(Preference **p) {
    BEGIN("cublasLtMatmulPreferenceCreate");
    *p = new Preference{0, ~0u, {256, 256, 256, 256}};
    return success;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Preference *p) {
    BEGIN("cublasLtMatmulPreferenceDestroy");
    delete p;
    return success;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *v, size_t size) {
    BEGIN("cublasLtMatmulPreferenceSetAttribute");
    switch (attribute) {
    case 1: return take(&p->workspace, v, size);
    case 3: return take(&p->reduction, v, size);
    case 5: case 6: case 7: case 8: return take(&p->align[attribute - 5], v, size);
    }
    return invalid_value;
}

// Three candidates: the second wants a workspace, the third splits the inner dimension if that is allowed. All give the
// same bits.
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, const Desc *d, const Layout *a, const Layout *b, const Layout *c, const Layout *out,
    const Preference *p, int wanted, Candidate *list, int *got) {
    BEGIN("cublasLtMatmulAlgoGetHeuristic");
    *got = 0;
    if (!handle || wanted < 1) return invalid_value;
    if (int status = problem(*d, *a, *b, *c, *out, nullptr)) return status;
    uint32_t align = 16;
    for (uint32_t promised : p->align) align = promised < align ? promised : align;
    const Algo algos[] = {
        {{66, 20, 1, 0, 0, 0, 18, 0, 0}, align, 0, {}},
        {{66, 23, 1, 0, 1, 0, 35, 0, 3}, align, 1 << 20, {}},
        {{67, 15, 4, 1, 0, 0, 18, 0, 0}, align, 1 << 16, {}},
        {{67, 15, 1, 0, 0, 0, 13, 0, 0}, align, 0, {}},
    };
    for (const Algo &algo : algos) {
        bool splits = algo.config[3] != 0;
        if (algo.workspace > p->workspace || (splits && !(p->reduction & algo.config[3])) || *got == wanted) continue;
        list[(*got)++] = {algo, algo.workspace, success, 0.5f, {}};
    }
    return success;
}

static size_t config_size(int attribute) { return attribute == 7 || attribute == 8 ? 2 : 4; }

EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const Algo *algo, int attribute, void *v, size_t size, size_t *written) {
    BEGIN("cublasLtMatmulAlgoConfigGetAttribute");
    if (attribute < 0 || attribute > 8 || size != config_size(attribute)) return invalid_value;
    memcpy(v, &algo->config[attribute], size);
    if (written) *written = size;
    return success;
}

EXPORT int cublasLtMatmul(void *handle, const Desc *desc, const float *alpha, const char *a, const Layout *la, const char *b, const Layout *lb,
    const float *beta, const char *c, const Layout *lc, char *d, const Layout *ld, const Algo *algo, void *workspace, size_t bytes, void *stream) {
    BEGIN("cublasLtMatmul");
    if (!apr_emulator_current()) return not_initialised;
    if (!handle || !alpha || !beta || !a || !b || !d) return invalid_value;
    Call *call = new Call{*desc, *la, *lb, *lc, *ld, a, b, c, d, *alpha, *beta, 0, 0, 0, {}, {}, 0};
    int status = problem(*desc, *la, *lb, *lc, *ld, call);
    if (status == success && algo) {
        if (algo->workspace > bytes || (algo->workspace && !apr_emulator_readable(workspace, algo->workspace))) status = invalid_value;
        for (const void *p : {(const void *)a, (const void *)b, (const void *)c, (const void *)d})
            if ((uintptr_t)p % algo->align) status = not_supported;
        if (desc->epilogue == 4 && (uintptr_t)desc->bias % algo->align) status = not_supported;
    }
    if (status != success) {
        delete call;
        return status;
    }
    return apr_emulator_enqueue(stream, multiply, [](void *p) { delete (Call *)p; }, call) ? execution_failed : success;
}
