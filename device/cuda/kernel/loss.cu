// loss.cu: the distillation loss of device.Stream.Loss and its gradient, rows of float32 logits at a time.
//
// A row is cut into slices of SLICE columns, a block each at {slice, row} of the grid, whatever the device: the order of sums, and with it every
// bit, depends on nothing but the number of columns and on whether rows begin at multiples of 16 bytes.
//
//	loss_stats  per slice: maxima, their places, and sums of exponentials centred at them      reads 8 bytes per logit
//	loss_rows   per row: merges the slices; CE, entropy, agreement, forward KL; factors of the gradient
//	loss_terms  per slice, all divergences but forward KL: D and Σh                             reads 8
//	loss_sums   per row: adds those
//	loss_grad   per slice: the gradient                              reads 8, writes 2 (bfloat16) or 4 (float32)
//	loss_finish adds the rows to the record, in ascending order of a fixed pattern, in float64
//
// So forward KL with a bfloat16 gradient moves 18 bytes per logit, the others 26, and cross-entropy alone 10. On an H200
// 512 rows of 151,936 logits take 0.36 ms at any temperature, 1024 rows 0.69 ms: 4.0 TB/s. Logits that wait in shared
// memory for the sums of their row would be read once, but blocks that wait for each other took 0.45 and 0.96 ms; and
// one exponential for e^{z/T} and e^z at temperatures 1 and 2 saved nothing.
//
// Sums are float32 within a thread, of 16 addends one after the other, and within a warp, as a tree; from there on
// float64.
//apr:module target=sm_80 types=bf16,f32 roles=train
#include "loss.cuh"

KERNEL(loss_stats, LossArgs, THREADS, 4) { stats<true>(a); }
KERNEL(loss_stats_alone, LossArgs, THREADS, 4) { stats<false>(a); }

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

KERNEL(loss_grad_alone, LossArgs, THREADS, 4) { gradient<CROSS_ENTROPY>(a); }
KERNEL(loss_grad_forward, LossArgs, THREADS, 4) { gradient<FORWARD_KL>(a); }
KERNEL(loss_grad_reverse, LossArgs, THREADS, 4) { gradient<REVERSE_KL>(a); }
KERNEL(loss_grad_variation, LossArgs, THREADS, 4) { gradient<TOTAL_VARIATION>(a); }
KERNEL(loss_grad_mixture, LossArgs, THREADS, 4) { gradient<MIXTURE>(a); }

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
