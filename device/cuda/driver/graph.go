package driver

import (
	"runtime"
	"unsafe"
)

// Graph is a CUDA graph as it was captured, Exec one that can be launched, Node one of its kernels.
type (
	Graph uintptr
	Exec  uintptr
	Node  uintptr
)

// graphCalls are the functions for CUDA graphs. A driver without one of them has no graphs.
type graphCalls struct {
	begin, end, info, instantiate, launch, set, destroy, destroyExec procedure
}

func (c *graphCalls) table() []struct {
	p    *procedure
	name string
} {
	return []struct {
		p    *procedure
		name string
	}{
		{&c.begin, "cuStreamBeginCapture_v2"}, {&c.end, "cuStreamEndCapture"}, {&c.info, "cuStreamGetCaptureInfo_v2"},
		{&c.instantiate, "cuGraphInstantiateWithFlags"}, {&c.launch, "cuGraphLaunch"}, {&c.set, "cuGraphExecKernelNodeSetParams_v2"},
		{&c.destroy, "cuGraphDestroy"}, {&c.destroyExec, "cuGraphExecDestroy"},
	}
}

// LacksGraphs returns the name of the first function for CUDA graphs that the driver lacks; empty: it has graphs.
func (d *Driver) LacksGraphs() string {
	for _, row := range d.graphs.table() {
		if row.p.addr == 0 {
			return row.name
		}
	}
	return ""
}

// bindGraphs looks for the functions for CUDA graphs.
func (d *Driver) bindGraphs() {
	for _, row := range d.graphs.table() {
		if p, err := d.lib.bind(row.name); err == nil {
			*row.p = p
		}
	}
}

// captureRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED: libraries may load what they need while their launches are captured.
const captureRelaxed = 2

// BeginCapture lets s collect what it is given instead of running it.
func (t *Thread) BeginCapture(s Stream) error {
	return t.d.call(&t.d.graphs.begin, uintptr(s), captureRelaxed)
}

// EndCapture returns what s has collected since BeginCapture, also after an error.
func (t *Thread) EndCapture(s Stream) (Graph, error) {
	var g Graph
	err := t.d.call(&t.d.graphs.end, uintptr(s), uintptr(unsafe.Pointer(&g)))
	return g, err
}

// LastCaptured returns the node of what the capturing s was given last; 0 if what follows would depend on several
// nodes, or none.
func (t *Thread) LastCaptured(s Stream) (Node, error) {
	var (
		status int32
		id     uint64
		graph  uintptr
		nodes  *Node
		n      uintptr
	)
	err := t.d.call(&t.d.graphs.info, uintptr(s), uintptr(unsafe.Pointer(&status)), uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(&graph)),
		uintptr(unsafe.Pointer(&nodes)), uintptr(unsafe.Pointer(&n)))
	if err != nil || n != 1 || nodes == nil {
		return 0, err
	}
	return *nodes, nil
}

// Instantiate makes a graph that can be launched. The captured one must live as long, since it owns the nodes.
func (t *Thread) Instantiate(g Graph) (Exec, error) {
	var e Exec
	err := t.d.call(&t.d.graphs.instantiate, uintptr(unsafe.Pointer(&e)), uintptr(g), 0)
	return e, err
}

// LaunchGraph runs all of e in s.
func (t *Thread) LaunchGraph(e Exec, s Stream) error {
	return t.d.call(&t.d.graphs.launch, uintptr(e), uintptr(s))
}

// nodeParams is CUDA_KERNEL_NODE_PARAMS of CUDA 12.
type nodeParams struct {
	function    uintptr
	grid, block [3]uint32
	shared      uint32
	params      *[1]unsafe.Pointer
	extra       uintptr
	kern        uintptr
	context     uintptr
}

// SetNode changes how later launches of e launch the kernel of a node: see Launch. The driver has copied args when
// SetNode returns.
func (t *Thread) SetNode(e Exec, n Node, f Function, grid [3]int, block, shared int, args unsafe.Pointer) error {
	t.params[0] = args
	t.node = nodeParams{
		function: uintptr(f), grid: [3]uint32{uint32(grid[0]), uint32(grid[1]), uint32(grid[2])}, block: [3]uint32{uint32(block), 1, 1},
		shared: uint32(shared), params: &t.params,
	}
	err := t.d.call(&t.d.graphs.set, uintptr(e), uintptr(n), uintptr(unsafe.Pointer(&t.node)))
	t.params[0] = nil
	runtime.KeepAlive(args)
	return err
}

// DestroyGraph gives a captured graph back; launches under way run to their end.
func (t *Thread) DestroyGraph(g Graph) error {
	return t.d.call(&t.d.graphs.destroy, uintptr(g))
}

// DestroyExec gives a graph of Instantiate back; launches under way run to their end.
func (t *Thread) DestroyExec(e Exec) error {
	return t.d.call(&t.d.graphs.destroyExec, uintptr(e))
}
