// broken.cu does not compile.
#include "apr.cuh"

struct BrokenArgs {
    u32 *p;
};

KERNEL(test_broken, BrokenArgs, 32, 1) { a.p[0] = nothing; }
