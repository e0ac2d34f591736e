package distill

import "apr/internal/fault"

// validateTogether refuses settings that each work alone, and whose combination nobody has designed.
func (c Config) validateTogether() error {
	ensemble := len(c.Teachers()) > 1 || c.Ensemble.routed()
	for _, t := range []struct {
		asked bool
		what  string
	}{
		{c.LoRA != nil && ensemble, "--lora with --strategy ensemble"},
		{c.LoRA != nil && c.Guide.Weight != 0, "--lora with --strategy progressive"},
		{c.LoRA != nil && c.Quantize != nil, "--lora with --quantize-aware"},
		{c.Quantize != nil && ensemble, "--quantize-aware with --strategy ensemble"},
		{c.Quantize != nil && c.Guide.Weight != 0, "--quantize-aware with --strategy progressive"},
		{c.Quantize != nil && c.Guide.Attention != 0, "--quantize-aware with --attention-weight"},
	} {
		if t.asked {
			return fault.New(fault.Unavailable, "not built yet: %s", t.what).WithHint("either works alone").WithID("E-DISTILL-096")
		}
	}
	return nil
}
