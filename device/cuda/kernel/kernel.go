// Package kernel holds the CUDA kernels and their launchers: for every .cu file the Go functions, in the .go file of
// the same name, that turn an operation of device.Stream into launches. Launchers are pure: they look at shapes, types
// and addresses, and hand launches to a Queue; they need no GPU.
//
// The PTX in ptx/ is made from the .cu files by `make kernels`, compressed and embedded; manifest.json there says from which
// bytes, and what each module is for.
//
// Words: a thread block is CUDA's; a block of a matrix is 32 or 256 quantised values; a layer is a transformer's.
//
// Caveats. What an operation of device.Stream demands is checked there, once (device.CheckRMSNorm and so on); what the kernels
// themselves cannot serve, a head of 257 columns or a stride of 2³¹, is a panic here. Kernels
// are launched in order on one stream, so scratch memory of one operation may be that of the next.
package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// Mat is a row-major matrix in device memory: element (r,c) stands Stride·r+c elements after Ptr. The zero Mat means
// "none".
type Mat struct {
	Ptr        uint64 // device address of element (0,0)
	Rows, Cols int
	Stride     int // elements between rows
	Type       tensor.DType
}

// IsZero reports whether m is the absent matrix.
func (m Mat) IsZero() bool { return m.Ptr == 0 }

// Launch is one kernel launch.
type Launch struct {
	Module string         // the .cu file without its extension
	Kernel string         // the entry point, unique over all modules
	Grid   [3]int         // blocks
	Block  int            // threads of a thread block, a multiple of 32
	Shared int            // bytes of dynamic shared memory
	Args   unsafe.Pointer // to the kernel's one struct of arguments, on the heap

	Cluster  int         // blocks of a cluster; 0: there are none
	Together bool        // all blocks run at the same time: see grid_wait of apr.cuh
	Early    bool        // may begin while the kernel before it ends: see Overlap
	Maps     []TensorMap // with which the arguments begin, 128 bytes each, written by whoever starts the kernel
}

// Queue takes launches in order.
type Queue interface {
	// Launch starts a kernel after everything queued before.
	Launch(Launch)
	// Scratch returns the 256-byte aligned address of n bytes whose content is undefined. They are the caller's until
	// its operation ends: a second call within one operation gives other bytes. More than MaxScratch bytes in one
	// operation is a broken precondition.
	Scratch(n int) uint64
	// Record returns the address of the device's Record.
	Record() uint64
	// Multiprocessors returns how many the device has, for launchers that size their grid by it.
	Multiprocessors() int
}

// MaxScratch is the number of bytes that one operation may take as scratch.
const MaxScratch = 64 << 20

// Record is the device's record of one step, struct Record of apr.cuh.
type Record struct {
	LR, InvN, Bias1, Bias2, MaxNorm float64
	CEWeight, DWeight, MaxLoss      float64
	CE, D, Entropy                  float64
	Positions, Agree                int64
	Loss, GradNorm, Scale           float64
	Finite, Diverged                int64
	Fault, FaultValue, FaultLimit   int64
	Arrived                         uint32 // 0 between launches
	Weights, Sums                   [device.NumObjectives]float64
}

// The codes of Record.Fault.
const (
	FaultNone     = iota
	FaultID       // embedding: id FaultValue outside [0, FaultLimit)
	FaultTarget   // loss: target FaultValue outside [0, FaultLimit)
	FaultRow      // gather, scatter: row FaultValue outside [0, FaultLimit)
	FaultPosition // rotary embedding: position FaultValue outside [0, FaultLimit)
	FaultWeight   // quantisation: value FaultValue of the parameter that FaultLimit tells fits no block
)
