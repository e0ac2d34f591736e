package model

import (
	"fmt"

	"apr/arch"
	"apr/device"
	"apr/internal/fault"
)

// Computed refuses a description with a feature that the arithmetic here does not have, by the feature's name. Such a model
// can be inspected and converted.
func Computed(c arch.Config) error {
	what := c.NotComputed()
	if what == "" && c.PLE != (arch.PLE{}) && c.PLE.Vocab < c.Vocab {
		what = "per-layer embeddings of a part of the vocabulary"
	}
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
	if l.Attn.HeadDim > device.MaxHeadDim {
		return "heads of more than 512 values"
	}
	return ""
}

// Served refuses a description with a feature that a device does not compute, by the feature's name.
func Served(c arch.Config, by device.Info) error {
	for _, l := range c.Layers {
		for _, f := range by.Lacks {
			what := ""
			switch {
			case f == device.Experts && l.FFN.MoE != (arch.MoE{}), f == device.DeltaNet && l.Linear():
				what = string(f)
			case f == device.WideDelta:
				what = wide(l.Delta)
			}
			if what != "" {
				return fault.New(fault.Unavailable, "%s cannot be computed on %s yet: %s", c.Family, by.Kind, what).WithHint("--backend cpu").WithID("E-MODEL-031")
			}
		}
	}
	return nil
}

// wide names what of a DeltaNet a device that lacks device.WideDelta does not compute, by its key; "": nothing.
func wide(d arch.DeltaNet) string {
	switch {
	case d.KeyDim > device.MaxDeltaKeys:
		return fmt.Sprintf("linear_key_head_dim %d, at most %d", d.KeyDim, device.MaxDeltaKeys)
	case d.Conv > device.MaxTaps:
		return fmt.Sprintf("linear_conv_kernel_dim %d, at most %d", d.Conv, device.MaxTaps)
	}
	return ""
}

// Separable refuses to keep the documents of rows of seqLen positions apart in a model whose rotary embeddings depend on the
// length of the sequence: a short document would be turned as the whole row is.
func Separable(c arch.Config, seqLen int) error {
	for _, r := range c.Ropes {
		if r.Kind == arch.RopeLong && seqLen > r.Original {
			return fault.New(fault.Unavailable, "--document-mask: rows of %d positions have other rotary frequencies in %s than documents of up to %d", seqLen, c.Family, r.Original).
				WithHint("--seq-len %d, or without --document-mask", r.Original).WithID("E-MODEL-030")
		}
	}
	return nil
}
