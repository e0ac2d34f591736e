// Package emulator runs the CUDA kernels of this project on a CPU, so that all of package cuda can be tested where there
// is no GPU: it is test support, and needs a C++ compiler.
//
// The sources in device/cuda/kernel are compiled as C++ against host.h, where the threads of a block are fibers that
// meet at every warp-wide operation and barrier. They become a libcuda.so.1 whose device is this emulation, and stand
// beside a libcublasLt.so.13 of plain loops. Kernel tests use a Machine; package driver opens the folder that Build
// returns as it opens any other driver.
//
// The emulation is stricter than a GPU. Undefined memory (fresh allocations, shared memory at the start of a block, the
// target of an asynchronous copy that was not waited for) holds NaN. These fail a launch with the kernel, block and
// thread: lanes that wait for each other in vain or at different operations, misaligned 16-byte accesses, addresses
// outside the device's memory, writes around shared arrays. Writes around allocations fail Check, or the next wait.
//
// Caveats. Approximations are exact functions; sums of tensor-core products are rounded differently from a GPU's; nothing
// is as fast as it looks: a launch costs microseconds and a switch of threads nanoseconds.
package emulator
