// loss_forward.cuh: forward KL in one launch.
//
// A block takes slices from a counter, so in the order of rows, and adds their sums. Meanwhile it keeps their logits in
// shared memory, of HELD slices at a time: before it adds the sums of one it writes the gradient of the oldest, whose
// row is complete by then, or nearly, and the loads of the one are under way.
//
// A block waits for a row only when the slice in its hands is of a later one. So all slices of the row were taken, their
// sums were added or will be without waiting for that row or a later one, and the wait ends, however many blocks run.
// Where that is not so, because few blocks run, the oldest slice is let go, and read again when it is.
#pragma once
#include "loss.cuh"

enum { HELD = 2 };

// Shelf is a slice in shared memory: values i to i+3 of z of each thread at [i/4], of t at [EACH/4 + i/4].
typedef f32x4 Shelf[2 * EACH / 4][THREADS];

APR_DEVICE void keep(Shelf &s, const float (&z)[EACH], const float (&t)[EACH]) {
    UNROLL for (int i = 0; i < EACH; i += 4) {
        s[i / 4][thread()] = f32x4{z[i], z[i + 1], z[i + 2], z[i + 3]};
        s[(EACH + i) / 4][thread()] = f32x4{t[i], t[i + 1], t[i + 2], t[i + 3]};
    }
}

// keep_again reads a slice once more; few values at a time, as those of the next slice are in registers.
APR_DEVICE void keep_again(const LossArgs &a, Shelf &s, i64 r, i32 lo) {
    Columns c = columns(a, lo);
    NO_UNROLL for (int i = 0; i < EACH; i += 4) {
        f32x4 z, t;
        UNROLL for (int j = 0; j < 4; j++) {
            bool inside = c.at(i + j) < a.cols;
            z[j] = inside ? a.z[r * a.z_stride + c.at(i + j)] : -INFINITY_F;
            t[j] = inside ? a.t[r * a.t_stride + c.at(i + j)] : -INFINITY_F;
        }
        s[i / 4][thread()] = z;
        s[(EACH + i) / 4][thread()] = t;
    }
}

// finish writes the gradient of a slice of row r as soon as the row is merged. It may lie over z: all slices of the row
// are added, and every thread keeps its own values.
template <int T> APR_DEVICE void finish(const LossArgs &a, const Shelf &s, i64 r, i32 lo) {
    if (thread() == 0)
        while (load_acquire(&a.counters[1 + r]) != (u32)a.slices + 1) {}
    sync_block();
    Row row = a.rows[r];
    Place p = place_of(a, row, r, lo);
    NO_UNROLL for (int i = 0; i < EACH; i += 4) {
        f32x4 z = s[i / 4][thread()], t = s[(EACH + i) / 4][thread()];
        const float z4[4] = {z[0], z[1], z[2], z[3]}, t4[4] = {t[0], t[1], t[2], t[3]};
        write4<FORWARD_KL, T>(a, row, p, i, z4, t4);
    }
}

// added tells that the state of a slice of row r is there. Who tells it last merges the row.
APR_DEVICE void added(const LossArgs &a, i64 r) {
    sync_warp();
    u32 before = lane() == 0 ? signal(&a.counters[1 + r]) : 0;
    if (shfl(before, 0) + 1 != (u32)a.slices) return;
    sync_warp();
    merge_row(a, r);
    if (lane() == 0) signal(&a.counters[1 + r]);
}

// Task names a slice: its row above SLICE_BITS, its place in the row below, which 2³¹ columns and the 4096 rows of a
// launch fit. Tasks are taken in ascending order; those of row a.n are none.
typedef u32 Task;
enum { SLICE_BITS = 19 };
APR_DEVICE u32 row_of(Task t) { return t >> SLICE_BITS; }
APR_DEVICE i32 slice_of(Task t) { return (i32)(t & ((1u << SLICE_BITS) - 1)); }
APR_DEVICE Task task_of(const LossArgs &a, u32 ticket) {
    u32 slices = (u32)a.slices, r = ticket / slices;
    return r < (u32)a.n ? r << SLICE_BITS | (ticket - r * slices) : (u32)a.n << SLICE_BITS;
}

// forward is all of forward KL but the record.
template <int T> APR_DEVICE void forward(const LossArgs &a) {
    DYNAMIC_SHARED(bytes);
    enum { RING = 4 };
    SHARED(Task, tasks, RING); // of turn i at i % RING: of this turn, of HELD before it, and of the next
    Task *below = (Task *)a.terms; // of a slice that was let go, the one let go before
    Task let_go = NONE;
    if (thread() < RING) tasks[thread()] = thread() == 0 ? task_of(a, take(a.counters)) : NONE;
    sync_block();
    // Turns after the last slice, HELD of them, only empty the shelves; their tasks count them.
    for (u32 turn = 0;; turn++) {
        Shelf &shelf = ((Shelf *)bytes)[turn % HELD];
        Task now = tasks[turn % RING], oldest = tasks[(turn + RING - HELD) % RING];
        u32 row = row_of(now), ticket = 0;
        float z[EACH], t[EACH];
        if (row < (u32)a.n) {
            read<true>(a, z, a.z + (i64)row * a.z_stride, slice_of(now) * SLICE);
            read<true>(a, t, a.t + (i64)row * a.t_stride, slice_of(now) * SLICE);
            if (thread() == 0) ticket = take(a.counters);
        }
        if (oldest != NONE && row_of(oldest) == row) {
            if (thread() == 0) below[(i64)row * a.slices + slice_of(oldest)] = let_go;
            let_go = oldest;
            oldest = NONE;
        }
        for (;;) {
            if (oldest == NONE) {
                if (let_go == NONE || row_of(let_go) == row) break;
                oldest = let_go;
                keep_again(a, shelf, row_of(oldest), slice_of(oldest) * SLICE);
                let_go = below[row_of(oldest) * (i64)a.slices + slice_of(oldest)];
            }
            finish<T>(a, shelf, row_of(oldest), slice_of(oldest) * SLICE);
            oldest = NONE;
        }
        if (row >= (u32)a.n) {
            if (slice_of(now) == HELD - 1) return; // that was the last held
            if (thread() == 0) tasks[(turn + 1) % RING] = now + 1;
            sync_block();
            continue;
        }
        keep(shelf, z, t);
        if (thread() == 0) tasks[(turn + 1) % RING] = task_of(a, ticket);
        stats<true, T>(a, z, t, row, slice_of(now));
        if (warp() == 0) added(a, row);
    }
}
