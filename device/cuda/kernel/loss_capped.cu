// The gradients of loss.cu over logits before their soft-cap.
//apr:module target=sm_80 types=bf16,f32 roles=train,optional
#include "loss.cuh"

KERNEL(loss_capped_alone, CappedLossArgs, THREADS, 4) { gradient<CROSS_ENTROPY>(a); }
KERNEL(loss_capped_forward, CappedLossArgs, THREADS, 4) { gradient<FORWARD_KL>(a); }
KERNEL(loss_capped_reverse, CappedLossArgs, THREADS, 4) { gradient<REVERSE_KL>(a); }
KERNEL(loss_capped_variation, CappedLossArgs, THREADS, 4) { gradient<TOTAL_VARIATION>(a); }
KERNEL(loss_capped_mixture, CappedLossArgs, THREADS, 4) { gradient<MIXTURE>(a); }
