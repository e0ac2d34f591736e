package convert

import (
	"errors"
	"os"
	"path/filepath"

	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/modelfile"
	"apr/tensor"
)

// keptFiles are copied from one Hugging Face folder to another: they say more than configuration and tokenizer do, such
// as how a tokenizer is called and how the model's authors would sample. config.json is rewritten, because types
// change.
var keptFiles = []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}

// maxKept is the largest file that is copied; tokenizer.json of the largest vocabularies have about 35 MB.
const maxKept = 128 << 20

// writeHF writes a Hugging Face folder.
func writeHF(c *Container, out string, sources []tensor.Source, plan []Choice, opt Options, r *Report) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	tok, err := c.Tokenizer()
	if err != nil {
		return err
	}
	keep, err := c.keep()
	if err != nil {
		return err
	}
	pruned, err := c.prunedText(opt)
	if err != nil {
		return err
	}
	metadata := modelfile.LearnedMetadata(c.Learned(), c.Writers())
	if pruned != "" {
		metadata[prunedKey] = pruned
	}
	r.Files, err = modelfile.SaveHFFolder(out, cfg, tok, sources, modelfile.HFOptions{
		DType: mainType(plan), Keep: keep, MaxShard: opt.MaxShard, Force: opt.Force, Metadata: metadata,
	})
	if err != nil {
		return err
	}
	r.OutputSize = 0
	for _, name := range r.Files {
		st, err := os.Stat(filepath.Join(out, name))
		if err != nil {
			return fault.In(fault.IO, filepath.Join(out, name), "cannot be read back").Because(err)
		}
		r.OutputSize += st.Size()
	}
	return nil
}

// keep reads the files of a Hugging Face folder that are to be kept, and checks that they are JSON.
func (c *Container) keep() (map[string][]byte, error) {
	if _, ok := c.Stored.(*safetensors.File); !ok {
		return nil, nil
	}
	dir := c.Path
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		dir = filepath.Dir(c.Files[0])
	}
	keep := map[string][]byte{}
	for _, name := range keptFiles {
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		path, err := readfile.Inside(dir, name)
		if err != nil {
			return nil, err
		}
		text, err := readfile.String(path, maxKept)
		if err != nil {
			return nil, err
		}
		if filepath.Ext(name) == ".json" {
			if _, err := strictjson.Parse(text, strictjson.Options{}); err != nil {
				return nil, strictjson.Fault(path, text, err)
			}
		}
		keep[name] = []byte(text)
	}
	return keep, nil
}
