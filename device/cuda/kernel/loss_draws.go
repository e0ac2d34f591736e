package kernel

import (
	"unsafe"

	"apr/device"
)

// LossDrawsModule has the kernels of LossOfDraws, but for the last of Loss.
const LossDrawsModule = "loss_draws"

// drawsLossArgs is struct DrawsLossArgs of loss_draws.cu.
type drawsLossArgs struct {
	cappedLossArgs
	drawn, values uint64
	draws         int32
}

// The size of struct DrawsLossArgs.
var _ [200]byte = [unsafe.Sizeof(drawsLossArgs{})]byte{}

// LossOfDraws is Loss with forward KL from the mean of n draws of each row, drawn int32 [c·n,1] or [1,c·n]: see
// device.DrawsLoss. An id outside [0,V) is noted as FaultTarget, and adds nothing.
//
// Bytes moved per logit with a bfloat16 gradient: 10.
func LossOfDraws(q Queue, grad, z, drawn, targets Mat, n int, spec device.LossSpec) {
	if z.Rows == 0 || z.Cols == 0 {
		return
	}
	lossRounds(q, z, 4*n, func(lo int, scratch lossScratched) {
		a := &drawsLossArgs{cappedLossArgs: *newLossArgs(q.Record(), grad, z, Mat{}, targets, spec)}
		a.take(lo, grad, z, Mat{}, scratch)
		a.k, a.invT, a.kind = float32(log2e/spec.Temperature), float32(1/spec.Temperature), forwardKL
		a.drawn, a.values, a.draws = drawn.Ptr+uint64(4*lo*n), scratch.more, int32(n)
		launch := func(module, name string, columns, rows, threads int) {
			grid := [3]int{columns, rows, 1}
			q.Launch(Launch{Module: module, Kernel: name, Grid: grid, Block: threads, Args: unsafe.Pointer(a)})
		}
		slices, rows := scratch.slices, scratch.n
		launch(LossDrawsModule, "loss_draws_stats", slices, rows, lossThreads)
		launch(LossDrawsModule, "loss_draws_rows", ceil(rows, lossWarps), 1, 32*lossWarps)
		if a.grad != 0 {
			gradient := "loss_draws_grad"
			if spec.Cap > 0 {
				gradient = "loss_draws_capped"
			}
			launch(LossDrawsModule, gradient, slices, rows, lossThreads)
			launch(LossDrawsModule, "loss_draws_put", ceil(rows, lossWarps), 1, 32*lossWarps)
		}
		launch("loss", "loss_finish", 1, 1, lossThreads)
	})
}
