package teacher

import "apr/internal/fault"

// AllowFP8 says whether a teacher may be multiplied in 8-bit floats: only if they add less noise than Q4_K, which is what
// people accept of a quantised teacher. kl is the mean KL(products in bf16 ‖ in fp8) over the same weights and text, limit the
// mean KL(weights as they are ‖ rounded to Q4_K) over that text, both in nats. The error is a fault of kind Invalid; a number
// that is not one refuses.
func AllowFP8(kl, limit float64) error {
	if kl < limit {
		return nil
	}
	return fault.In(fault.Invalid, "--teacher-gemm", "fp8 moves this teacher by a mean KL of %.3g nats, and must move it by less than the %.3g of rounding its weights to Q4_K", kl, limit).
		WithHint("use --teacher-gemm bf16").WithID("E-TEACHER-005")
}
