package driver

import (
	"runtime"
	"unsafe"
)

// launchConfig is CUlaunchConfig with one attribute.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      uintptr
	attributes  *launchAttribute
	n           uint32

	attribute launchAttribute // where attributes points to
}

// launchAttribute is CUlaunchAttribute.
type launchAttribute struct {
	id    uint32
	_     uint32
	value [16]uint32
}

const (
	attributeTogether = 2 // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
	attributeCluster  = 4 // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
	attributeEarly    = 6 // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
)

// LaunchCluster is Launch in clusters of that many blocks, which the first extent of the grid is a multiple of. Compute
// capability 9.0 and later.
func (t *Thread) LaunchCluster(f Function, grid [3]int, cluster, block, shared int, s Stream, args unsafe.Pointer) error {
	return t.launchWith(attributeCluster, [3]uint32{uint32(cluster), 1, 1}, f, grid, block, shared, s, args)
}

// LaunchTogether is Launch of a grid whose blocks all run at the same time, so that they may wait for each other. More than
// the device has room for are an error.
func (t *Thread) LaunchTogether(f Function, grid [3]int, block, shared int, s Stream, args unsafe.Pointer) error {
	return t.launchWith(attributeTogether, [3]uint32{1}, f, grid, block, shared, s, args)
}

// LaunchEarly is Launch of a kernel that may begin before the one before it in the stream has ended: as soon as all blocks of
// that have executed griddepcontrol.launch_dependents or ended. It waits for the end itself, by griddepcontrol.wait.
// Compute capability 9.0 and later.
func (t *Thread) LaunchEarly(f Function, grid [3]int, block, shared int, s Stream, args unsafe.Pointer) error {
	return t.launchWith(attributeEarly, [3]uint32{1}, f, grid, block, shared, s, args)
}

// launchWith is Launch with an attribute.
func (t *Thread) launchWith(id uint32, value [3]uint32, f Function, grid [3]int, block, shared int, s Stream, args unsafe.Pointer) error {
	c := &t.config
	c.grid, c.block = [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}, [3]uint32{uint32(block), 1, 1}
	c.shared, c.stream, c.attributes, c.n = uint32(shared), uintptr(s), &c.attribute, 1
	c.attribute.id = id
	copy(c.attribute.value[:], value[:])
	t.params[0] = args
	t.launch = [11]uintptr{uintptr(unsafe.Pointer(c)), uintptr(f), uintptr(unsafe.Pointer(&t.params)), 0}
	err := t.d.call(&t.d.calls.launchKernelEx, t.launch[:4]...)
	t.params[0] = nil
	runtime.KeepAlive(args)
	return err
}

// TensorMap describes a matrix to the tensor memory unit of compute capability 9.0 (CUtensorMap). Kernels take it as
// part of their argument, at a multiple of 64 bytes.
type TensorMap [128]byte

// Matrix is what a tensor map says: Rows×Cols elements of bfloat16, or of one byte, at an address that is a multiple of 16,
// as Stride, a multiple of 16 bytes, from row to row. A box of BoxRows ≤ 256 rows of 64 columns, or of 128 of one byte, is
// moved at a time; in shared memory its rows are 128 bytes, whose 16-byte units are permuted by the row's number modulo 8.
// Beyond the matrix are zeros.
type Matrix struct {
	Ptr        uint64
	Rows, Cols int
	Stride     int // bytes
	BoxRows    int
	Bytes      bool // elements are of one byte
}

// tensorMap is what cuTensorMapEncodeTiled reads and writes.
type tensorMap struct {
	dims    [2]uint64
	strides [1]uint64
	box     [2]uint32
	steps   [2]uint32
	args    [12]uintptr
	space   [len(TensorMap{}) + mapAlignment]byte
}

const mapAlignment = 64

// Values of cuda.h.
const (
	mapUint8      = 0 // CU_TENSOR_MAP_DATA_TYPE_UINT8
	mapBFloat16   = 9 // CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
	mapRank       = 2
	mapPlain      = 0 // CU_TENSOR_MAP_INTERLEAVE_NONE
	mapPattern128 = 3 // CU_TENSOR_MAP_SWIZZLE_128B
	mapL2Sectors  = 3 // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
	mapZeros      = 0 // CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
	boxBytes      = 128
)

// TensorMaps reports whether the driver can make tensor maps.
func (d *Driver) TensorMaps() bool { return d.calls.tensorMap.addr != 0 }

// EncodeTensorMap writes the tensor map of a matrix, on the host alone. TensorMaps must be true.
func (t *Thread) EncodeTensorMap(to *TensorMap, m Matrix) error {
	a := &t.matrix
	a.dims, a.strides = [2]uint64{uint64(m.Cols), uint64(m.Rows)}, [1]uint64{uint64(m.Stride)}
	element, columns := uintptr(mapBFloat16), uint32(boxBytes/2)
	if m.Bytes {
		element, columns = mapUint8, boxBytes
	}
	a.box, a.steps = [2]uint32{columns, uint32(m.BoxRows)}, [2]uint32{1, 1}
	skip := -int(uintptr(unsafe.Pointer(&a.space))) & (mapAlignment - 1)
	space := (*TensorMap)(a.space[skip:])
	a.args = [12]uintptr{
		uintptr(unsafe.Pointer(space)), element, mapRank, uintptr(m.Ptr), uintptr(unsafe.Pointer(&a.dims)),
		uintptr(unsafe.Pointer(&a.strides)), uintptr(unsafe.Pointer(&a.box)), uintptr(unsafe.Pointer(&a.steps)),
		mapPlain, mapPattern128, mapL2Sectors, mapZeros,
	}
	err := t.d.call(&t.d.calls.tensorMap, a.args[:]...)
	*to = *space
	return err
}
