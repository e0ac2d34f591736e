package kernel

import (
	"slices"
	"sync"
)

// EarlyModule has twins of the kernels of generation's step that begin while the kernel before them ends. It is for
// compute capability 9.0.
const EarlyModule = "decode_sm90"

// earlyBlocks is up to how many blocks a launch of what training needs too is one of generation.
const earlyBlocks = 64

// Overlap returns l by its twin of EarlyModule, or l itself if it has none.
//
// A kernel that is launched Early may begin as soon as all blocks of the kernel before it in the stream have begun and
// called let_next, or have ended; what it reads or writes of others it must leave until its wait_before. All of these do.
func Overlap(l Launch) Launch {
	if slices.Contains([]string{tilesK, tilesG, tilesC, stagedModule}, l.Module) { // which nothing but generation launches
		l.Early = true
		return l
	}
	twin, ok := twins()[l.Kernel]
	always := []string{rowsModule, decodeModule, pairsModule, gemvModule, FinishModule, DeltaModule, PagesModule}
	small := l.Grid[0] <= earlyBlocks || slices.Contains(always, l.Module)
	if l.Module == ConvModule {
		small = l.Grid[1] <= 1
	}
	if !ok || !small {
		return l
	}
	l.Module, l.Kernel, l.Early = EarlyModule, twin, true
	return l
}

// twins returns the kernels of EarlyModule by the names of those that they stand in for.
var twins = sync.OnceValue(func() map[string]string {
	modules := Modules()
	return modules[slices.IndexFunc(modules, func(m Module) bool { return m.Name == EarlyModule })].Twins
})
