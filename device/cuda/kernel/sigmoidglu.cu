// A gated unit with σ alone, of attention that is gated, and its backward: see glu.cuh.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "glu.cuh"

// σ(g)·u. What is approximated forgets NaN; the comparisons do not.
struct Sigmoid {
    template <class T> APR_METHOD static float gated(float g, float u) {
        const float s = rcp_approx(1.0f + exp_minus(g, T()));
        return u * (g == g ? s : g);
    }
    template <class T> APR_METHOD static void slopes(float g, float &u, float &d) {
        const float m = exp_minus(g, T()), s = rcp_approx(1.0f + m); // 1 − σ = m·s
        d *= g == g ? s : g;
        u *= d * (m * s);
    }
};

KERNEL(sigmoidglu_bf16_8, GLUArgs, 256, 4) { glu<bf16, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_bf16_1, GLUArgs, 256, 4) { glu<bf16, 1, 4, Sigmoid>(a); }
KERNEL(sigmoidglu_f32_8, GLUArgs, 256, 4) { glu<float, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_f32_1, GLUArgs, 256, 4) { glu<float, 1, 4, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_bf16_8, GLUArgs, 256, 4) { glu_backward<bf16, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_bf16_1, GLUArgs, 256, 4) { glu_backward<bf16, 1, 4, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_f32_8, GLUArgs, 256, 3) { glu_backward<float, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_f32_1, GLUArgs, 256, 4) { glu_backward<float, 1, 4, Sigmoid>(a); }
