package device

import "fmt"

// Op names an operation of a Stream.
type Op uint8

// The operations. Those of values come first, in the order of the interface; those of memory and of the record follow.
const (
	OpNone Op = iota // no operation
	OpUpload
	OpUploadInts
	OpDownload
	OpFetch
	OpRefreshWeight
	OpZero
	OpCopy
	OpEmbed
	OpEmbedBackward
	OpRMSNorm
	OpRMSNormBackward
	OpMatMul
	OpMatMulInputGrad
	OpMatMulWeightGrad
	OpHeadNorm
	OpHeadNormBackward
	OpRotate
	OpAttention
	OpAttentionBackward
	OpConv
	OpConvBackward
	OpDeltaNet
	OpDeltaNetBackward
	OpDeinterleave
	OpInterleave
	OpGLU
	OpMatMulGLU
	OpGLUBackward
	OpAdd
	OpScale
	OpSoftCap
	OpDropout
	OpLowRank
	OpLowRankWeightGrad
	OpLowRankInputGrad
	OpMix
	OpProject
	OpRoute
	OpRouteBackward
	OpGroupedMatMul
	OpGroupedInputGrad
	OpGroupedWeightGrad
	OpCombine
	OpCombineBackward
	OpCountSlots
	OpBalanceBackward
	OpGather
	OpScatter
	OpPutRows
	OpAttendPages
	OpLoss
	OpLossOfDraws
	OpSquaredError
	OpCompareMaps
	OpVerdict
	OpAdamW
	OpQuantize
	OpArgMax
	OpDrawNext
	OpDrawMany
	OpDecode
	OpTemp
	OpRelease
	OpAlloc
	OpFree
	OpFrozen
	OpPhase
	NumOps
)

var opNames = [NumOps]string{
	"none", "Upload", "UploadInts", "Download", "Fetch", "RefreshWeight", "Zero", "Copy", "Embed", "EmbedBackward", "RMSNorm",
	"RMSNormBackward", "MatMul", "MatMulInputGrad", "MatMulWeightGrad", "HeadNorm", "HeadNormBackward", "Rotate", "Attention",
	"AttentionBackward", "Conv", "ConvBackward", "DeltaNet", "DeltaNetBackward", "Deinterleave", "Interleave",
	"GLU", "MatMulGLU", "GLUBackward", "Add", "Scale", "SoftCap", "Dropout", "LowRank", "LowRankWeightGrad",
	"LowRankInputGrad", "Mix", "Project",
	"Route", "RouteBackward", "GroupedMatMul", "GroupedInputGrad",
	"GroupedWeightGrad", "Combine", "CombineBackward", "CountSlots", "BalanceBackward", "Gather", "Scatter",
	"PutRows", "AttendPages", "Loss", "LossOfDraws",
	"SquaredError", "CompareMaps", "Verdict", "AdamW", "Quantize", "ArgMax", "DrawNext", "DrawMany", "Decode",
	"Temp", "Release", "Alloc", "Free", "Frozen", "Phase",
}

// String returns the name of the method.
func (o Op) String() string {
	if o < NumOps {
		return opNames[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// ReadsWeight reports whether the operation multiplies by a Weight: those whose work depends on how the device keeps it.
func (o Op) ReadsWeight() bool {
	return o == OpMatMul || o == OpMatMulInputGrad || o == OpMatMulGLU || o == OpGroupedMatMul || o == OpGroupedInputGrad
}

// Grouped reports whether the operation multiplies by the matrices of experts.
func (o Op) Grouped() bool {
	return o == OpGroupedMatMul || o == OpGroupedInputGrad || o == OpGroupedWeightGrad
}

// Feature returns what the operation belongs to, which a device may lack; "": every device has it.
func (o Op) Feature() Feature {
	if o >= OpRoute && o <= OpBalanceBackward {
		return Experts
	}
	if o >= OpConv && o <= OpDeltaNetBackward {
		return DeltaNet
	}
	if o == OpQuantize {
		return Quantizes
	}
	if o == OpProject {
		return Projects
	}
	if o == OpPutRows || o == OpAttendPages {
		return Pages
	}
	if o == OpDrawNext {
		return DrawsNext
	}
	if o == OpCompareMaps {
		return Maps
	}
	if o == OpDrawMany {
		return DrawsMany
	}
	if o == OpLossOfDraws {
		return DrawsTeach
	}
	return ""
}

// Trains reports whether only training runs the operation: a generation or an evaluation without a loss does not.
func (o Op) Trains() bool {
	switch o {
	case OpEmbedBackward, OpRMSNormBackward, OpHeadNormBackward, OpAttentionBackward, OpConvBackward, OpDeltaNetBackward, OpGLUBackward,
		OpRouteBackward, OpCombineBackward, OpBalanceBackward, OpGroupedWeightGrad, OpLowRankWeightGrad, OpLowRankInputGrad,
		OpLoss, OpLossOfDraws, OpSquaredError, OpCompareMaps, OpAdamW, OpQuantize,
		OpProject:
		return true
	}
	return false
}
