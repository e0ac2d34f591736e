// The loss of device.DrawsLoss: forward KL from a teacher whose distribution is the mean of n draws, p = count/n. All
// but the drawn ids have p = 0, so that no logits of the teacher are read or written:
//
//	D = Σ_draws [ln p − ln Q]/n,  gradient = (1−α)/N·(q − e_y) + αT/N·(Q − p)
//
//	loss_draws_stats  per slice: the largest z, and the sums of e^{z−mz} and e^{(z−mz)/T}      reads 4 bytes per logit
//	loss_draws_rows   per row: merges the slices; the record's part, and the gradient at each drawn id
//	loss_draws_grad   per slice: the gradient where p is 0                   reads 4, writes 2 (bfloat16) or 4 (float32)
//	loss_draws_put    per row: the gradient at the drawn ids; a second kernel, since it may lie over z
//
// and loss_finish of loss.cu. With a bfloat16 gradient that is 10 bytes per logit, as without a teacher.
//apr:module target=sm_80 types=bf16,f32 roles=train,optional
#include "loss.cuh"

// DrawsLossArgs: element r·draws + k of drawn is draw k of row r, and that of values the gradient there.
struct DrawsLossArgs : CappedLossArgs {
    const i32 *drawn;
    float *values;
    i32 draws;
};
static_assert(sizeof(DrawsLossArgs) == 200, "as in loss_draws.go");

// draws_row merges the slices of row r, by one warp, of which each lane takes every 32nd draw.
APR_DEVICE void draws_row(const DrawsLossArgs &a, i64 r) {
    const State s = merge(a.states + r * a.slices, a.slices, a.k);
    const i32 *drawn = a.drawn + r * a.draws;
    const float *z = a.z + r * a.z_stride;
    Row row{};
    row.target = a.targets[r * a.target_stride];
    row.valid = row.target >= 0 && row.target < a.cols;
    factors(a, row, s);
    const double each = inverse(a.draws), inv_t = inverse(a.temperature), ln_sz = ln(s.sum[SZ]);
    float most = 0; // how often the id was drawn that this lane saw most often
    u32 first = NONE;
    for (i32 k = (i32)lane(); k < a.draws; k += 32) {
        const i32 id = drawn[k];
        float count = 0, g = 0;
        for (i32 i = 0; i < a.draws; i++) count += drawn[i] == id;
        if (id < 0 || id >= a.cols) {
            first_fault(a.record, 2, id, a.cols);
        } else {
            const double p = count * each, ln_p = ln(p);
            row.entropy -= each * ln_p;
            row.d += each * (ln_p - ((double)z[id] - s.mz) * inv_t + ln_sz);
            g = slope<DRAWS>(a, row, z[id], 0) - row.f * (float)p;
            g = times_cap(a, id == row.target ? g - row.at : g, z[id]);
            if (count > most) { // ids ascend
                most = count;
                first = id;
            }
        }
        a.values[r * a.draws + k] = row.valid ? g : 0;
    }
    row.d = warp_sum(row.d);
    row.entropy = warp_sum(row.entropy);
    first = warp_min(most == warp_max(most) ? first : NONE);
    if (lane() != 0) return;
    if (row.valid) {
        row.ce = s.mz + ln(s.sum[S1]) - z[row.target];
        row.agree = first == s.place[0] && first != NONE;
    } else {
        first_fault(a.record, 2, row.target, a.cols);
        row = Row{};
        row.target = NONE;
    }
    a.rows[r] = row;
}

KERNEL(loss_draws_stats, LossArgs, THREADS, 4) { stats<false, true>(a); }
KERNEL(loss_draws_grad, LossArgs, THREADS, 4) { gradient<DRAWS>(a); }
KERNEL(loss_draws_capped, CappedLossArgs, THREADS, 4) { gradient<DRAWS>(a); }

KERNEL(loss_draws_rows, DrawsLossArgs, 128, 4) {
    const i64 r = (i64)block() * 4 + warp();
    if (r < a.n) draws_row(a, r);
}

KERNEL(loss_draws_put, DrawsLossArgs, 128, 4) {
    const i64 r = (i64)block() * 4 + warp();
    if (r >= a.n) return;
    for (i64 k = r * a.draws + lane(); k < (r + 1) * a.draws; k += 32) {
        const i32 id = a.drawn[k];
        if (id < 0 || id >= a.cols) continue;
        const i64 at = r * a.grad_stride + id;
        if (a.narrow) {
            store((bf16 *)a.grad + at, a.values[k]);
        } else {
            store((float *)a.grad + at, a.values[k]);
        }
    }
}
