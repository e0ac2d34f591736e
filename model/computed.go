package model

import (
	"apr/arch"
	"apr/device"
	"apr/internal/fault"
)

// Computed refuses a description with a feature that the arithmetic here does not have, by the feature's name. Such a model
// can be inspected and converted.
func Computed(c arch.Config) error {
	what := c.NotComputed()
	for i := range c.Layers {
		if what == "" {
			what = beyond(c.Layers[i])
		}
	}
	if what == "" {
		return nil
	}
	return fault.New(fault.Unavailable, "%s cannot be computed yet: %s", c.Family, what).WithID("E-MODEL-014")
}

// beyond names the first feature of a layer that the forward and backward passes lack; "": none.
func beyond(l arch.Layer) string {
	switch {
	case l.FFN.Act != arch.SiLU && l.FFN.Act != arch.GELUTanh:
		return "activation " + string(l.FFN.Act)
	case l.Attn.HeadDim > device.MaxHeadDim:
		return "heads of more than 512 values"
	}
	return ""
}
