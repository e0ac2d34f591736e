package driver

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"apr/internal/fault"
)

// Nccl is libnccl, opened and bound: collectives between the memories of GPUs, one process or thread for each. Its
// methods are the library's calls with Go types and nothing more. Those that take a stream, and Init, are only valid on
// a device's thread (see Context.Do), because the library works on the device of the calling thread; Abort and
// AsyncError may come from any thread.
//
// Numbers and layouts are those of nccl.h, the same in all releases of major version 2.
type Nccl struct {
	path    string
	version int
	f       [ncclFunctions]procedure
}

// NcclID is what all ranks of a communicator have in common (ncclUniqueId); rank 0 makes it and tells the others.
type NcclID [128]byte

// NcclComm is one rank of a communicator (ncclComm_t).
type NcclComm uintptr

// NcclType is an element type (ncclDataType_t).
type NcclType int

// Element types.
const (
	NcclU8   NcclType = 1
	NcclF32  NcclType = 7
	NcclF64  NcclType = 8
	NcclBF16 NcclType = 9
)

// ncclSum is the only reduction that is used (ncclRedOp_t).
const ncclSum = 0

// ncclInProgress is the result of AsyncError while nothing went wrong and something goes on.
const ncclInProgress = 7

// The calls that are bound, in the order of ncclNames.
const (
	ncclGetVersion = iota
	ncclGetErrorString
	ncclGetUniqueID
	ncclCommInitRank
	ncclCommDestroy
	ncclCommAbort
	ncclCommGetAsyncError
	ncclAllReduce
	ncclReduceScatter
	ncclAllGather
	ncclBroadcast
	ncclSend
	ncclRecv
	ncclGroupStart
	ncclGroupEnd
	ncclFunctions
)

var ncclNames = [ncclFunctions]string{
	"ncclGetVersion", "ncclGetErrorString", "ncclGetUniqueId", "ncclCommInitRank", "ncclCommDestroy", "ncclCommAbort",
	"ncclCommGetAsyncError", "ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
	"ncclSend", "ncclRecv", "ncclGroupStart", "ncclGroupEnd",
}

// NcclVariable names the file of libnccl, before all other places.
const NcclVariable = "APR_NCCL"

// nvlsVariable turns sums inside the NVLink switch on or off. Their order is not fixed, and they hold multicast objects
// that some machines do not give.
const nvlsVariable = "NCCL_NVLS_ENABLE"

// OpenNccl finds, opens and binds libnccl. Without it the Nccl is nil and the report says what was tried; a library
// that lacks a function, or is older than 2.7, which has no send and receive, is an error, too. In-switch sums (NVLS)
// stay off unless the user has set NCCL_NVLS_ENABLE.
func OpenNccl() (*Nccl, Report, error) {
	if _, set := os.LookupEnv(nvlsVariable); !set { // the library reads its environment when it is used first
		if err := os.Setenv(nvlsVariable, "0"); err != nil {
			return nil, Report{Library: NCCL}, err
		}
	}
	lib, report := open(NCCL, 0)
	if lib == nil {
		return nil, report, report.Err()
	}
	n := &Nccl{path: lib.path}
	for i, name := range ncclNames {
		var err error
		if n.f[i], err = lib.bind(name); err != nil {
			return nil, report, err
		}
	}
	v := new(int32)
	if err := n.call(ncclGetVersion, uintptr(unsafe.Pointer(v))); err != nil {
		return nil, report, err
	}
	n.version = int(*v)
	report.Version = dotted(n.version)
	if n.version < 20700 {
		return nil, report, fault.In(fault.Unavailable, lib.path, "is NCCL %s", report.Version).WithID("E-CUDA-070").
			WithHint("2.7 or later is wanted; %s names another file", NcclVariable)
	}
	return n, report, nil
}

// Path returns the file that was opened.
func (n *Nccl) Path() string { return n.path }

// Version returns what ncclGetVersion says, such as 22809 for 2.28.9.
func (n *Nccl) Version() int { return n.version }

// call calls a function and returns its result as an error: nil or an *Error.
//
//go:uintptrescapes
func (n *Nccl) call(f int, args ...uintptr) error {
	code := int(int32(invoke(n.f[f].addr, args...))) // ncclResult_t is an int
	if code == 0 {
		return nil
	}
	return n.failed(f, code)
}

// failed is the error of a result.
func (n *Nccl) failed(f, code int) *Error {
	e := &Error{Call: ncclNames[f], Code: code, Name: ncclErrors[code]}
	if p := invoke(n.f[ncclGetErrorString].addr, uintptr(code)); p != 0 {
		e.Text = cString(*(*unsafe.Pointer)(unsafe.Pointer(&p))) // a constant of the library, which is never closed
	}
	return e
}

// ncclErrors are the names of ncclResult_t.
var ncclErrors = map[int]string{
	1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 4: "ncclInvalidArgument",
	5: "ncclInvalidUsage", 6: "ncclRemoteError", 7: "ncclInProgress",
}

// UniqueID returns a new communicator's id, whose maker listens for the others.
func (n *Nccl) UniqueID() (id NcclID, err error) {
	keepSignals(func() { err = n.call(ncclGetUniqueID, uintptr(unsafe.Pointer(&id))) })
	return id, err
}

// Init makes the device of this thread rank `rank` of world; it waits for all others. The id goes by value: on amd64
// its 16 words lie on the stack behind six registers, of which the call reads three; on arm64 a pointer is passed.
func (n *Nccl) Init(_ *Thread, world, rank int, id NcclID) (c NcclComm, err error) {
	held, by := new(NcclComm), new(NcclID)
	*by = id
	w := (*[16]uintptr)(unsafe.Pointer(by))
	keepSignals(func() {
		if runtime.GOARCH == "arm64" {
			err = n.call(ncclCommInitRank, uintptr(unsafe.Pointer(held)), uintptr(world),
				uintptr(unsafe.Pointer(by)), uintptr(rank))
			return
		}
		err = n.call(ncclCommInitRank, uintptr(unsafe.Pointer(held)), uintptr(world), uintptr(rank), 0, 0, 0,
			w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15])
	})
	return *held, err
}

// Destroy gives a communicator back whose work is done.
func (n *Nccl) Destroy(_ *Thread, c NcclComm) error { return n.call(ncclCommDestroy, uintptr(c)) }

// Abort ends a communicator whatever it does: its kernels stop, calls in other threads return, and what it was to write
// is undefined. It must not be used afterwards.
func (n *Nccl) Abort(c NcclComm) error { return n.call(ncclCommAbort, uintptr(c)) }

// AsyncError returns what went wrong in the communicator's own threads and kernels, if anything did.
func (n *Nccl) AsyncError(c NcclComm) error {
	code := new(int32)
	if err := n.call(ncclCommGetAsyncError, uintptr(c), uintptr(unsafe.Pointer(code))); err != nil {
		return err
	}
	if *code == 0 || *code == ncclInProgress {
		return nil
	}
	return n.failed(ncclCommGetAsyncError, int(*code))
}

// AllReduce: n elements at dst ← their sum over the ranks of those at src, which may be dst.
func (n *Nccl) AllReduce(_ *Thread, c NcclComm, dst, src uint64, count int, d NcclType, s Stream) error {
	return n.call(ncclAllReduce, uintptr(src), uintptr(dst), uintptr(count), uintptr(d), ncclSum, uintptr(c), uintptr(s))
}

// ReduceScatter: count elements at dst ← elements [count·rank, count·(rank+1)) of the sum over the ranks of the
// count·world elements at src. dst may be that part of src.
func (n *Nccl) ReduceScatter(_ *Thread, c NcclComm, dst, src uint64, count int, d NcclType, s Stream) error {
	return n.call(ncclReduceScatter, uintptr(src), uintptr(dst), uintptr(count), uintptr(d), ncclSum, uintptr(c),
		uintptr(s))
}

// AllGather: elements [count·r, count·(r+1)) at dst ← the count elements at src of rank r. src may be that part of
// dst.
func (n *Nccl) AllGather(_ *Thread, c NcclComm, dst, src uint64, count int, d NcclType, s Stream) error {
	return n.call(ncclAllGather, uintptr(src), uintptr(dst), uintptr(count), uintptr(d), uintptr(c), uintptr(s))
}

// Broadcast: count elements at p ← those of rank root.
func (n *Nccl) Broadcast(_ *Thread, c NcclComm, p uint64, count int, d NcclType, root int, s Stream) error {
	return n.call(ncclBroadcast, uintptr(p), uintptr(p), uintptr(count), uintptr(d), uintptr(root), uintptr(c), uintptr(s))
}

// Send gives count elements at src to rank peer, which has to Recv as many.
func (n *Nccl) Send(_ *Thread, c NcclComm, src uint64, count int, d NcclType, peer int, s Stream) error {
	return n.call(ncclSend, uintptr(src), uintptr(count), uintptr(d), uintptr(peer), uintptr(c), uintptr(s))
}

// Recv takes count elements from rank peer to dst.
func (n *Nccl) Recv(_ *Thread, c NcclComm, dst uint64, count int, d NcclType, peer int, s Stream) error {
	return n.call(ncclRecv, uintptr(dst), uintptr(count), uintptr(d), uintptr(peer), uintptr(c), uintptr(s))
}

// Together lets the calls that f makes start as one. It is how a rank sends and receives at the same time.
func (n *Nccl) Together(f func() error) error {
	if err := n.call(ncclGroupStart); err != nil {
		return err
	}
	err := f()
	if e := n.call(ncclGroupEnd); err == nil {
		err = e
	}
	return err
}

// String names the library for reports.
func (n *Nccl) String() string { return fmt.Sprintf("NCCL %s", dotted(n.version)) }
