package device

import "apr/tensor"

// A device runs its operations one after the other, whichever of its streams they come from. Some devices can have a
// second queue. Operations of the second queue run while those of the first do:
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
	// Beside opens the second queue. It computes the same bits. It takes all its memory from memory, U8 [1, n], and fails
	// where that does not suffice. The caller closes the second queue, then gives memory back, then closes this device.
	Beside(memory Tensor) (Beside, error)
}

// Beside is the second queue of a Besider.
type Beside interface {
	Device
	// Lend returns the other device's t, of Alloc, for operations of this device that read it.
	Lend(t Tensor) Tensor
	// LendWeight is Lend for a weight that reads such a tensor; other weights are not lent (a panic).
	LendWeight(w Weight) Weight
	// Follow orders the queues: operations that are queued here after the call begin when all that was queued on the first
	// device before the call is done, so that they read what it wrote to lent tensors. Before the first device writes to
	// lent tensors again, the host has to wait for the operations here that read them (Wait, Download).
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
