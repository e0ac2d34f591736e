// driver.h: what the libcuda of the emulator offers to its libcublasLt and libnccl, beside the CUDA driver's own functions.
#pragma once
#include <cstddef>

extern "C" {
// apr_emulator_enter begins a call of any library: it counts it and returns what APR_EMULATOR_FAIL wants, else 0.
int apr_emulator_enter(const char *function);
// apr_emulator_current says whether the calling thread has a usable context.
int apr_emulator_current();
// apr_emulator_device returns the device of the calling thread's context, −1 without one.
int apr_emulator_device();
// apr_emulator_enqueue appends work to a stream; task(data) returns a CUresult, drop(data) frees data.
int apr_emulator_enqueue(void *stream, int (*task)(void *data), void (*drop)(void *data), void *data);
// apr_emulator_readable says whether bytes at p lie in one allocation.
int apr_emulator_readable(const void *p, size_t bytes);
// apr_emulator_parallel runs part(data, i) for i in [0, n) on the emulator's CPU threads.
void apr_emulator_parallel(int n, void (*part)(void *data, int i), void *data);
// apr_emulator_note keeps a message for cuGetErrorString and returns the code.
int apr_emulator_note(int code, const char *message);
}
