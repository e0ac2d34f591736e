package distill

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"apr/corpus"
	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// readShards reads token shards, which must be of the models' tokenizer.
func (in *inputs) readShards(c Config, obs Observer) error {
	if st, err := os.Stat(c.Dataset); err == nil && !st.IsDir() {
		f := fault.In(fault.NotFound, c.Dataset, "is a file, and --dataset reads a folder of token shards").
			WithID("E-SHARD-015")
		if filepath.Ext(c.Dataset) == ".bin" {
			return f.WithHint("--dataset %s", filepath.Dir(c.Dataset))
		}
		return f.WithHint("-d %s reads text; apr tokenize encode-corpus makes shards of it", c.Dataset)
	}
	origin, err := corpus.ReadShardOrigin(c.Dataset)
	if err != nil {
		return err
	}
	if err := in.checkOrigin(c, origin, obs); err != nil {
		return err
	}
	eos, err := in.endOfShards(c, origin)
	if err != nil {
		return err
	}
	t, files, err := corpus.ReadShards(c.Dataset, in.vocab, eos)
	if err != nil {
		return err
	}
	if err := origin.Holds(t); err != nil {
		return err
	}
	in.train, in.written.writers = t, origin.Writers
	in.records["data"] = runlog.Input{Path: c.Dataset, SHA256: t.SHA256(), Of: ofDocuments, Detail: fmt.Sprintf("%d shards, %d tokens", len(files), len(t.IDs))}
	return nil
}

// checkOrigin refuses shards of another tokenizer than the models', and keeps a warning if that is unknown.
func (in *inputs) checkOrigin(c Config, origin corpus.ShardOrigin, obs Observer) error {
	tok, of, err := in.anyTokenizer(c)
	if err != nil {
		return err
	}
	switch {
	case tok != nil:
		if err := origin.Agrees(tok, of); err != nil {
			return err
		}
		if origin.Tokenizer == "" {
			in.unsaid = fmt.Sprintf("%s: nothing says with which tokenizer the shards were made; their ids are only known to be below %d", c.Dataset, in.vocab)
		}
	case origin.Vocab > int64(in.vocab):
		return fault.In(fault.Invalid, c.Dataset, "the shards have a vocabulary of %d ids, the student %d rows", origin.Vocab, in.vocab).WithID("E-DISTILL-032")
	default:
		in.unsaid = fmt.Sprintf("%s: neither model has a tokenizer to compare with that of the shards", c.Dataset)
	}
	if in.unsaid != "" {
		obs.Message("warning: %s", in.unsaid)
	}
	return nil
}

// anyTokenizer returns the student's tokenizer, or the teacher's if the student has none, and the file that it is of;
// nil if there is none.
func (in *inputs) anyTokenizer(c Config) (*tokenizer.Tokenizer, string, error) {
	if in.tokenizer != nil {
		if in.student != nil {
			return in.tokenizer, c.Student, nil
		}
		return in.tokenizer, c.Teacher, nil
	}
	tok, err := in.teacher.Tokenizer()
	if modelfile.HasNoTokenizer(err) {
		return nil, "", nil
	}
	return tok, c.Teacher, err
}

// endOfShards returns the id that ends the documents of token shards: the tokenizer's; without one, what the shards'
// own manifest says, or a model's configuration.
func (in *inputs) endOfShards(c Config, origin corpus.ShardOrigin) (int32, error) {
	if in.tokenizer != nil {
		return corpus.EndOfText(in.tokenizer)
	}
	eos, known := int32(origin.EOS), origin.EOS >= 0
	for _, ids := range [][]int{in.studentConfig.EOS, in.teacher.Config.EOS} {
		if !known && len(ids) > 0 {
			eos, known = int32(min(ids[0], math.MaxInt32)), true
		}
	}
	switch {
	case !known:
		return 0, fault.In(fault.Load, c.Dataset, "which id ends a document is not known: neither model has a tokenizer, or eos_token_id in its configuration").
			WithHint("state eos_token_id in config.json").WithID("E-DISTILL-030")
	case int(eos) >= in.vocab:
		return 0, fault.In(fault.Invalid, c.Dataset, "id %d, which ends a document, is not below the vocabulary's %d", eos, in.vocab).WithID("E-DISTILL-031")
	}
	return eos, nil
}
