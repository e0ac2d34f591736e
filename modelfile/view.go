package modelfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"apr/arch"
	"apr/format"
	"apr/internal/fault"
	"apr/tensor"
)

// view is a model file whose tensors are the slots of a description, whatever the file's own tensors are: split, in their
// order of rows, with their values. What belongs to no slot follows under its own name.
type view struct {
	tensor.File // as it is stored
	list        []tensor.Stored
	byName      map[string]tensor.Stored
	wrong       map[string]error   // slots that cannot be read of what is stored
	behind      error              // see layersBehind
	twice       [][2]tensor.Stored // tensors of one name within the text model: the one that is read, and another
	left        []string           // tensors of other parts of a multimodal checkpoint, and those that only repeat what is known
}

// Tensors implements tensor.File.
func (v *view) Tensors() []tensor.Stored { return v.list }

// Tensor implements tensor.File.
func (v *view) Tensor(name string) (tensor.Stored, bool) {
	t, ok := v.byName[name]
	return t, ok
}

// newView sees f as a model of description c.
func newView(f tensor.File, kind format.Kind, c arch.Config) *view {
	v := &view{File: f, byName: map[string]tensor.Stored{}, wrong: map[string]error{}}
	stored := map[string]tensor.Stored{} // by name within the text model
	for _, t := range f.Tensors() {
		name, ok := t.Name, true
		if kind != format.GGUF {
			name, ok = arch.TextName(t.Name)
		}
		if first, twice := stored[name]; twice || !ok {
			v.left = append(v.left, t.Name)
			if ok {
				v.twice = append(v.twice, [2]tensor.Stored{first, t})
			}
			continue
		}
		stored[name] = t
	}
	used := map[string]bool{}
	for _, s := range arch.Slots(c) {
		for _, p := range places(kind, s) {
			if v.add(s, p, stored, used) {
				break
			}
		}
	}
	v.strays(kind, len(c.Layers))
	spare := repeated(kind, c)
	for name, t := range stored {
		switch {
		case used[name]:
		case spare[name] || kind == format.GGUF && block(name) >= len(c.Layers):
			v.left = append(v.left, t.Name)
		default:
			if _, ok := v.byName[name]; !ok {
				t.Name = name
				v.byName[name] = t
			}
		}
	}
	for _, t := range v.byName {
		v.list = append(v.list, t)
	}
	slices.SortFunc(v.list, func(a, b tensor.Stored) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(v.left)
	return v
}

// places returns where a format may have a slot, the first first. An .apr file has slots as they are, or, from another
// program, the tensors of Hugging Face.
func places(kind format.Kind, s arch.Slot) []arch.Place {
	switch kind {
	case format.GGUF:
		return []arch.Place{s.GGUF}
	case format.Apr:
		return []arch.Place{aprPlace(s), s.HF}
	}
	return []arch.Place{s.HF, aprPlace(s)} // a file of ours that stands alone has what an .apr file has
}

// aprPlace is where an .apr file has a slot: by itself, as it is.
func aprPlace(s arch.Slot) arch.Place { return arch.Place{Name: s.Name, Shape: s.Shape} }

// names returns the names of the file's tensors of a place.
func names(p arch.Place) []string {
	if p.Each == 0 {
		return []string{p.Name}
	}
	all := make([]string, p.Each)
	for e := range all {
		all[e] = strings.ReplaceAll(p.Name, "{e}", fmt.Sprint(e))
	}
	return all
}

// add makes slot s of what is stored at p, and reports whether it is there.
func (v *view) add(s arch.Slot, p arch.Place, stored map[string]tensor.Stored, used map[string]bool) bool {
	if p.Blocks {
		return v.addBlocks(s, p, stored, used)
	}
	var files []tensor.Stored
	if !v.take(s, names(p), p.Shape, stored, used, &files) {
		return false
	}
	if v.wrong[s.Name] != nil {
		return true
	}
	if s.Alone(p) {
		t := files[0]
		if t.Name = s.Name; slices.Equal(t.Shape, p.Shape) {
			t.Shape = s.Shape
		}
		v.byName[s.Name] = t
		return true
	}
	t, err := moved(v.Path(), s, p, files)
	if err != nil {
		v.wrong[s.Name] = err
		return true
	}
	v.byName[s.Name] = t
	return true
}

// addBlocks is add of a slot in MXFP4.
func (v *view) addBlocks(s arch.Slot, p arch.Place, stored map[string]tensor.Stored, used map[string]bool) bool {
	var files []tensor.Stored
	if !v.take(s, []string{p.Name + "_blocks", p.Name + "_scales"}, nil, stored, used, &files) {
		return false
	}
	if v.wrong[s.Name] != nil {
		return true
	}
	t, err := mxfp4(v.Path(), s, p, files[0], files[1])
	if err != nil {
		v.wrong[s.Name] = err
		return true
	}
	v.byName[s.Name] = t
	return true
}

// take finds the tensors that a slot is made of and reports whether any is there. If others are not, what is wrong with the slot is
// that the first of these is missing, with the shape that it must have unless that is nil.
func (v *view) take(s arch.Slot, names []string, shape []int, stored map[string]tensor.Stored, used map[string]bool, files *[]tensor.Stored) bool {
	var missing []string
	for _, name := range names {
		if t, ok := stored[name]; ok {
			*files = append(*files, t)
		} else {
			missing = append(missing, name)
		}
	}
	if len(*files) == 0 {
		return false
	}
	for _, t := range names {
		used[t] = true
	}
	if len(missing) > 0 {
		e := fault.In(fault.Load, v.Path(), "is missing, and %d of the %d tensors of its kind in this layer are there", len(*files), len(names)).
			At("tensor %q", missing[0]).WithID("E-MODEL-001")
		if shape != nil {
			e.Msg += fmt.Sprintf("; the configuration needs it with shape %v", shape)
		}
		v.wrong[s.Name] = e
	}
	return true
}

// repeated are tensors that files may have, and that no slot is: tables of the rotary embedding, and the keys and values of
// layers that use those of another.
func repeated(kind format.Kind, c arch.Config) map[string]bool {
	all := map[string]bool{}
	if kind == format.GGUF {
		for _, name := range []string{"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"} {
			all[name] = true
		}
	}
	own := c
	own.Layers = slices.Clone(c.Layers)
	for i := range own.Layers {
		own.Layers[i].Attn.KVFrom = i
	}
	read := map[string]bool{}
	for _, s := range arch.Slots(c) {
		read[s.Name] = true
	}
	for _, s := range arch.Slots(own) {
		if read[s.Name] {
			continue
		}
		for _, p := range places(kind, s) {
			all[p.Name] = true
		}
	}
	return all
}

// misshapen is a fault about the shape of a file's tensor.
func misshapen(path string, t tensor.Stored, want []int) error {
	return fault.In(fault.Load, path, "has shape %v; the configuration needs %v", t.Shape, want).At("tensor %q", t.Name).WithID("E-MODEL-002")
}
