// The slots of experts.
#pragma once
#include "apr.cuh"

// expert_of returns the expert of a slot: as many as end at the slot or before.
APR_DEVICE u32 expert_of(const i32 *starts, u32 experts, u32 slot) {
    u32 expert = 0;
    NO_UNROLL for (u32 base = 0; base < experts; base += 32)
        expert += popcount(ballot(base + lane() < experts && (u32)starts[base + lane() + 1] <= slot));
    return expert;
}
