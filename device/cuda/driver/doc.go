// Package driver opens NVIDIA's libraries at run time and speaks to them: the CUDA driver (libcuda), on which
// everything rests, and beside it cublasLt (matrix products), NCCL (several GPUs) and NVML (utilisation), which may be
// missing. Nothing is linked, so one binary runs with and without a GPU, and builds with CGO_ENABLED=0.
//
//	d, err := driver.Open()              // finds and opens libcuda, or says everything that was tried
//	c, err := d.NewContext(0)            // one goroutine, locked to its OS thread, owns the device
//	err = c.Do(func(t *driver.Thread) error {
//		p, err := t.Alloc(1<<20, false)
//		...
//	})
//
// CUDA's current context belongs to an OS thread, and goroutines move between threads; so a Context has one goroutine
// locked to its thread, and all others send it closures: Do waits for its closure, Go does not. The methods of Thread
// are valid only inside them.
//
// Caveats. A closure must not call Do, Go or Close of its own Context. Libraries are never closed again. Asynchronous
// copies read and write host memory after they return, which is safe only for memory of HostAlloc. A struct of kernel
// arguments must be on the heap; it is read before Launch returns. With the build tag static, and on anything but
// linux/amd64 and linux/arm64, no library can be opened and Open says so.
package driver

// Stream is a queue of work on the device; the zero Stream is the default one.
type Stream uintptr

// Event is a mark in a stream.
type Event uintptr

// Module is a loaded program of one or more kernels.
type Module uintptr

// Function is a kernel of a module.
type Function uintptr
