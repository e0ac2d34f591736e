package modelfile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
)

// Stops returns the ids that end a generated text: those of generation_config.json beside the model, and without any there the
// tokenizer's end of text, the further ends that its file names, and the configuration's.
func (f *Files) Stops() ([]int32, error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	if f.Folder != "" {
		path := filepath.Join(f.Folder, generationFile)
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			if ids, err := generationStops(f.Folder, tok.RealIDs()); err != nil || len(ids) > 0 {
				return ids, err
			}
		}
	}
	var ids []int32
	all := append([]int32{tok.EOS()}, tok.Ends()...)
	for _, id := range f.Config.EOS {
		all = append(all, int32(id))
	}
	for _, id := range all {
		if id >= 0 && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// generationStops reads eos_token_id of generation_config.json: an id, a list of ids, or nothing.
func generationStops(dir string, vocab int) ([]int32, error) {
	path, err := readfile.Inside(dir, generationFile)
	if err != nil {
		return nil, err
	}
	text, err := readfile.String(path, 1<<20)
	if err != nil {
		return nil, err
	}
	root, err := strictjson.Parse(text, strictjson.Options{})
	if err == nil {
		err = root.Expect(strictjson.Object)
	}
	if err != nil {
		return nil, strictjson.Fault(path, text, err)
	}
	v, ok := root.Get("eos_token_id")
	if !ok || v.Kind() == strictjson.Null {
		return nil, nil
	}
	list := []strictjson.Value{v}
	if v.Kind() == strictjson.Array {
		list = slices.Collect(v.Items())
	}
	var ids []int32
	for _, item := range list {
		id, err := item.Uint64()
		if err != nil {
			return nil, strictjson.Fault(path, text, err)
		}
		if id >= uint64(vocab) {
			return nil, fault.In(fault.Load, path, "id %d is outside the vocabulary of %d", id, vocab).At("eos_token_id").WithID("E-TOK-012")
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}
