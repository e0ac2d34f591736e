package device

import "apr/tensor"

// A device runs its operations one after the other, whichever of its streams they come from. Some devices can have a
// second queue, whose operations run beside those of the first:
//
//	first   -- update 1 --+---------- gradients 2 ----------+-- update 2 --+--
//	                      | Follow                          | host waits   | Follow
//	second                +-- reads weights (Lend) -- ends -+              +-- ...
//
// The second queue is a Device of its own, so that no operation of one shares temps, scratch, workspaces, graphs or
// counters with one of the other: weights alone are lent. What it needs is planned like any other memory, as one tensor
// of the first device (Besides).

// Besider is a Device that can have a second queue.
type Besider interface {
	Device
	// Beside opens a device whose operations run beside this one's, on the same machine and with the same bits. All
	// memory that it takes comes from memory, U8 [1, n], which stays the caller's and is given back after Close of
	// what is returned; beyond it there is none. Close it before this one.
	Beside(memory Tensor) (Beside, error)
}

// Beside is a device whose operations run beside those of another one.
type Beside interface {
	Device
	// Lend returns the other device's t, of Alloc, for operations of this device that read it.
	Lend(t Tensor) Tensor
	// LendWeight is Lend for a weight that reads such a tensor; other weights are not lent (a panic).
	LendWeight(w Weight) Weight
	// Follow lets what is queued from now on begin when the other device has done all that was queued there so far:
	// after that it sees what was written to lent tensors. Before the other device writes to them again, the host has to
	// wait for what reads them here (Wait, Download).
	Follow()
}

// Besides is the memory in which a second queue computes: see Besider.
const Besides Component = "beside"

// CheckBeside checks a call of Besider.Beside.
func CheckBeside(t Tensor) {
	if t.IsZero() || t.DType != tensor.U8 || t.Rows != 1 || t.Off != 0 || t.Buf.State() != Lasting ||
		int64(t.Cols) != t.Buf.Bytes() {
		panic("device: Beside wants all of a tensor of Alloc, U8 [1, n]")
	}
}
