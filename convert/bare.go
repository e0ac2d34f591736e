package convert

import (
	"cmp"
	"context"
	"strings"

	"apr/arch"
	"apr/format/aprfile"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// WriteBare writes an .apr file of a model that has no usable configuration, with what the shapes of its tensors tell:
// it can be inspected and compared, not run. family may be empty. A tokenizer is written if there is one.
func WriteBare(ctx context.Context, c *Container, out, family string, opt Options) (*Report, error) {
	shape := inferShape(c.weights(""))
	plan, r, err := planOf(c, out, rolesByName(c.weights(""), shape["num_layers"]), opt)
	if err != nil {
		return nil, err
	}
	r.Warnings = append(r.Warnings, "no configuration: the file can be inspected, not run")
	if err := refuseOverwrite(c, out, opt); err != nil {
		return nil, err
	}
	enc, sources, err := encoded(ctx, c, plan, opt, r)
	if err != nil {
		return nil, err
	}
	meta := map[string]any{"original_format": c.Format}
	for key, n := range shape {
		meta[key] = n
	}
	if family != "" {
		meta["architecture"] = family
	}
	if tok, err := c.Tokenizer(); err == nil {
		modelfile.AddTokenizer(meta, tok)
	} else {
		r.Warnings = append(r.Warnings, "no tokenizer: "+err.Error())
	}
	_, head := c.File.Tensor(headName)
	_, embedding := c.File.Tensor(embedName)
	err = aprfile.Write(out, sources, aprfile.Options{Force: opt.Force, Metadata: meta, Writer: writer(opt), Tied: embedding && !head})
	if err = cmp.Or(enc.damage, err); err != nil {
		return nil, err
	}
	return r, r.measure(out)
}

// inferShape returns the sizes that names and shapes show. They do not show heads, θ and ε.
func inferShape(tensors []tensor.Stored) map[string]int {
	shape := map[string]int{}
	for _, t := range tensors {
		if rest, ok := strings.CutPrefix(t.Name, "model.layers."); ok {
			number, _, _ := strings.Cut(rest, ".")
			if n, ok := layerNumber(number); ok {
				shape["num_layers"] = max(shape["num_layers"], n+1)
			}
		}
		switch {
		case len(t.Shape) != 2:
		case t.Name == embedName:
			shape["vocab_size"], shape["hidden_size"] = t.Shape[0], t.Shape[1]
		case strings.HasSuffix(t.Name, ".mlp.up_proj.weight"):
			shape["intermediate_size"] = t.Shape[0]
		}
	}
	return shape
}

// Supported lists the architectures that can be named.
func Supported() []string { return append([]string{"auto"}, arch.Families()...) }

// CheckImport refuses a source that import must not take: one of another architecture than asked for ("auto": any) and,
// when strict, one with warnings, of the reader or of the plan.
func CheckImport(c *Container, out, family string, strict bool, opt Options) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	if family != "auto" && family != cfg.Family {
		return fault.In(fault.Invalid, c.Path, "architecture is %q, not %q", cfg.Family, family).WithHint("--arch auto").WithID("E-IMPORT-001")
	}
	_, r, err := Plan(c, out, opt)
	if err != nil {
		return err
	}
	if strict && len(r.Warnings) > 0 {
		return fault.In(fault.Invalid, c.Path, "%d warnings, which --strict refuses; the first: %s", len(r.Warnings), r.Warnings[0]).WithID("E-IMPORT-002")
	}
	return nil
}
