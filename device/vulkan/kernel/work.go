package kernel

import (
	"slices"
	"strings"
)

// Work estimates how long one group of a launch works, in products of a matrix product that take as long. Other
// kernels wait for memory more, which factors stand for; they err by a few times.
func Work(l Launch) int64 {
	m := Modules()[l.Kernel]
	arg := func(name string) int64 {
		if i := slices.Index(m.Args, name); i >= 0 && i < len(l.Args) {
			return int64(l.Args[i])
		}
		return 1
	}
	const slow, elements = 8, 64 * 64
	kind, _, _ := strings.Cut(l.Kernel, "_")
	switch kind {
	case "wide":
		return wideTile * wideTile * max(1, min(arg("k"), arg("depth")))
	case "gemm":
		return tile * tile * max(1, min(arg("k"), arg("depth")))
	case "gemv":
		return slow * 8 * arg("columns") * arg("m")
	case "row":
		return slow * 4 * rowLanes / max(1, arg("team")) * arg("columns")
	case "add": // add_parts
		return slow * 64 * arg("parts")
	case "attention":
		return slow * 4 * arg("dim") * max(arg("keys"), arg("key_rows"), arg("queries")*arg("shared_by"))
	case "loss", "mix", "argmax":
		return slow * slow * arg("n")
	}
	return slow * elements
}
