package modelfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"apr/format"
	"apr/format/gguf"
	"apr/internal/fault"
	"apr/tensor"
)

// CheckStrays refuses a file that holds parts of a model which its configuration would leave unused without a word: layers behind the
// last one, and a second tensor of a name, with other values. It reads both tensors of such a name. Faults are of kind Format.
func (c *Container) CheckStrays() error {
	v, ok := c.File.(*view)
	if !ok {
		return nil
	}
	if v.behind != nil {
		return v.behind
	}
	for _, p := range v.twice {
		same := slices.Equal(p[0].Shape, p[1].Shape)
		if same {
			var err error
			if same, err = c.equal(p[0], p[1]); err != nil {
				return err
			}
		}
		if !same {
			return fault.In(fault.Format, c.Path, "is another tensor than %q, and both names mean the same one", p[0].Name).
				At("tensor %q", p[1].Name).WithHint("remove the wrong one, or fetch the file again").WithID("E-MODEL-018")
		}
	}
	return nil
}

// layersBehind judges the tensors of blocks behind the last layer of a GGUF file. Those of layers that predict further tokens are left
// out: blocks that the file counts as such, each with a tensor of its own kind. Others mean that the number of layers is wrong.
func layersBehind(f *gguf.File, layers int) error {
	arch, _ := f.Metadata().Value("general.architecture")
	key := fmt.Sprintf("%v.block_count", arch)
	count, _ := f.Metadata().Value(key)
	further, declared := f.Metadata().Value(fmt.Sprintf("%v.nextn_predict_layers", arch))
	total := layers
	if declared {
		if _, err := fmt.Sscan(fmt.Sprint(count), &total); err != nil {
			return err // the configuration was read of it
		}
	}
	predicts := map[int]bool{}
	for _, t := range f.Tensors() {
		if n := block(t.Name); n >= layers && n < total && strings.HasPrefix(t.Name, fmt.Sprintf("blk.%d.nextn.", n)) {
			predicts[n] = true
		}
	}
	stray := slices.DeleteFunc(slices.Clone(f.Tensors()), func(t tensor.Stored) bool {
		n := block(t.Name)
		return n < layers || predicts[n]
	})
	if len(stray) == 0 {
		return nil
	}
	first := slices.MinFunc(stray, func(a, b tensor.Stored) int {
		return cmp.Or(cmp.Compare(block(a.Name), block(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	e := fault.In(fault.Format, f.Path(), "is %v, and the file has %d tensors of layers behind the last, the first %q", count, len(stray), first.Name).
		At("key %q", key).WithHint("the key or the file is damaged: fetch the file again and compare its checksum with the publisher's").WithID("E-MODEL-017")
	if declared {
		e.Msg += fmt.Sprintf(", which %v layers that predict further tokens do not explain", further)
	}
	return e
}

// block returns the number of the block that a GGUF tensor is of; −1: of none.
func block(name string) int {
	var n int
	if _, err := fmt.Sscanf(name, "blk.%d.", &n); err != nil {
		return -1
	}
	return n
}

// strays notes what CheckStrays judges without reading.
func (v *view) strays(kind format.Kind, layers int) {
	if f, ok := v.File.(*gguf.File); ok && kind == format.GGUF {
		v.behind = layersBehind(f, layers)
	}
}
