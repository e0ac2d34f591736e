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
// Streams do their work as late as they may: when somebody waits for it, and only what must come before. An event is
// reported as done by the second question after it was recorded. Asynchronous copies need pinned memory.
//
// The driver reads these variables in cuInit, and forgets lost devices there:
//
//	APR_EMULATOR_DEVICES             how many devices there are (1)
//	APR_EMULATOR_MEMORY              bytes of each (8 GiB); more cannot be allocated
//	APR_EMULATOR_CC                  compute capability (8.0); modules for newer devices are refused
//	APR_EMULATOR_DRIVER              version of CUDA that the driver serves (13000); newer PTX is refused
//	APR_EMULATOR_MULTIPROCESSORS     attribute of the devices (6)
//	APR_EMULATOR_INTEGRATED, _MANAGED, _CONCURRENT_MANAGED, _PAGEABLE, _PAGEABLE_TABLES
//	                                 attributes of the devices, 0 or 1 (0, 1, 1, 0, 0)
//	APR_EMULATOR_NAME                name of the devices
//	APR_EMULATOR_SIGNALS             1: cuInit takes over SIGINT and SIGTERM, as some drivers do
//	APR_EMULATOR_FAIL                calls that fail: "cuMemAlloc_v2:3=2,cublasLtMatmulAlgoGetHeuristic:*=15" is the third
//	                                 allocation and every heuristic; errors that lose the device do lose it
//
// Build compiles the kernels of the module, or what APR_EMULATOR_OVERLAY replaces them by: a file as -overlay of the go
// command reads it.
//
// Caveats. Kernels for compute capability 9.0 alone, *_sm90.cu, are left out unless they are declared emulated, but for attention in kernel tests: hopper.h computes products
// where they are started, so that a missing wait is not seen. Approximations are exact functions, and sums
// of tensor-core products are rounded differently from a GPU's. Kernels are compiled without fused products where their
// source has none. A launch costs about a microsecond, a thread's barrier or exchange about ten nanoseconds. All machines
// and drivers of a process share one memory.
package emulator
