// loss.cu: the distillation loss of device.Stream.Loss and its gradient, rows of float32 logits at a time.
//
// A row is cut into slices of SLICE columns, a block each, whatever the device: the order of sums, and with it every
// bit, depends on nothing but the number of columns and on whether rows begin at multiples of 16 bytes.
//
//	loss_stats  per slice: maxima, their places, and sums of exponentials centred at them      reads 8 bytes per logit
//	loss_rows   per row: merges the slices; CE, entropy, agreement, forward KL; factors of the gradient
//	loss_terms  per slice, all divergences but forward KL: D and Σh                             reads 8
//	loss_sums   per row: adds those
//	loss_grad   per slice: the gradient                              reads 8, writes 2 (bfloat16) or 4 (float32)
//	loss_finish adds the rows to the record, in ascending order of a fixed pattern, in float64
//
// So forward KL with a bfloat16 gradient moves 18 bytes per logit, the others 26, and cross-entropy alone 10.
// loss_forward does the work of loss_stats, loss_rows and loss_grad for forward KL in one launch, the gradient of a row
// so soon after its sums that the logits are still in the second-level cache: 10 bytes of memory, 8 of cache.
//
// Within a thread and a warp sums are float32, of 16 and 32 addends, in the order of a tree; from there on float64.
#include "loss.cuh"

KERNEL(loss_stats, LossArgs, THREADS, 4) { stats<true, false>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_stats_unit, LossArgs, THREADS, 4) { stats<true, true>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_stats_alone, LossArgs, THREADS, 4) { stats<false, true>(a, block() / a.slices, block() % a.slices); }

KERNEL(loss_rows, LossArgs, 128, 4) {
    i64 r = (i64)block() * 4 + warp();
    if (r < a.n) merge_row(a, r);
}

KERNEL(loss_terms_reverse, LossArgs, THREADS, 4) { terms<REVERSE_KL>(a); }
KERNEL(loss_terms_variation, LossArgs, THREADS, 4) { terms<TOTAL_VARIATION>(a); }
KERNEL(loss_terms_mixture, LossArgs, THREADS, 2) { terms<MIXTURE>(a); }

// loss_sums adds the terms of a row's slices; a warp takes a row.
KERNEL(loss_sums, LossArgs, 128, 4) {
    i64 r = (i64)block() * 4 + warp();
    if (r >= a.n) return;
    double d = 0, h = 0;
    for (i32 i = lane(); i < a.slices; i += 32) {
        d += a.terms[r * a.slices + i].d;
        h += a.terms[r * a.slices + i].h;
    }
    d = warp_sum(d);
    h = warp_sum(h);
    if (lane() != 0 || !a.rows[r].valid) return;
    a.rows[r].d = d;
    a.rows[r].h = (float)h;
}

KERNEL(loss_grad_alone, LossArgs, THREADS, 4) { gradient<CROSS_ENTROPY, true>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_grad_forward, LossArgs, THREADS, 4) { gradient<FORWARD_KL, false>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_grad_forward_unit, LossArgs, THREADS, 4) { gradient<FORWARD_KL, true>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_grad_reverse, LossArgs, THREADS, 4) { gradient<REVERSE_KL, false>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_grad_variation, LossArgs, THREADS, 4) { gradient<TOTAL_VARIATION, false>(a, block() / a.slices, block() % a.slices); }
KERNEL(loss_grad_mixture, LossArgs, THREADS, 4) { gradient<MIXTURE, false>(a, block() / a.slices, block() % a.slices); }

KERNEL(loss_clear, LossArgs, THREADS, 1) {
    for (i32 i = (i32)thread(); i <= a.n; i += THREADS) a.counters[i] = 0;
}

// forward is all of forward KL but the record. Blocks take tasks in the order: the sums of row 0, of row 1, …, of row
// `lag`, the gradient of row 0, the sums of row lag+1, the gradient of row 1, … The last block to finish the sums of a
// row merges it. By then, or a little later, its gradient's turn comes; who comes too early waits for tasks that others
// took before, and they wait for none.
template <bool Unit> APR_DEVICE void forward(const LossArgs &a) {
    SHARED(u32, task, 1);
    if (thread() == 0) task[0] = take(a.counters);
    sync_block();
    i64 r = task[0] / (2 * a.slices);
    i32 slice = (i32)(task[0] % (2 * a.slices));
    if (slice >= a.slices) {
        r -= a.lag;
        if (r >= 0) gradient<FORWARD_KL, Unit, true>(a, r, slice - a.slices);
        return;
    }
    if (r >= a.n) return;
    stats<true, Unit>(a, r, slice);
    if (warp() != 0) return;
    u32 done = lane() == 0 ? signal(&a.counters[1 + r]) : 0;
    if (shfl(done, 0) + 1 != (u32)a.slices) return;
    sync_warp();
    merge_row(a, r);
    if (lane() == 0) signal(&a.counters[1 + r]);
}

KERNEL(loss_forward, LossArgs, THREADS, 4) { forward<false>(a); }
KERNEL(loss_forward_unit, LossArgs, THREADS, 4) { forward<true>(a); }

// loss_finish adds the rows to the record: one block, thread i takes rows i, i+256, …
KERNEL(loss_finish, LossArgs, THREADS, 1) {
    double ce = 0, d = 0, entropy = 0, agree = 0, valid = 0;
    for (i32 r = (i32)thread(); r < a.n; r += THREADS) {
        const Row &row = a.rows[r];
        ce += row.ce;
        d += row.d;
        entropy += row.entropy;
        agree += row.agree;
        valid += row.valid;
    }
    SHARED(double, part, 33);
    ce = block_sum(ce, part);
    d = block_sum(d, part);
    entropy = block_sum(entropy, part);
    agree = block_sum(agree, part);
    valid = block_sum(valid, part);
    if (thread() != 0) return;
    a.record->ce += ce;
    a.record->d += d;
    a.record->entropy += entropy;
    a.record->agree += (i64)agree;
    a.record->positions += (i64)valid;
}
