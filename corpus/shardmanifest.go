package corpus

import (
	"math"
	"os"
	"path/filepath"

	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/tokenizer"
)

// ShardOrigin is what the manifest.json of token shards says of how their ids were made. What it does not say is -1 or empty.
type ShardOrigin struct {
	Tokenizer string // tokenizer.IDsSHA256
	Vocab     int64
	EOS       int64
	Writers   map[string]Written // models that wrote records of the text; see RecordSum
	policy    EOSPolicy
	documents int64

	path string
}

// ReadShardOrigin reads manifest.json in dir; without one nothing is known.
func ReadShardOrigin(dir string) (ShardOrigin, error) {
	o := ShardOrigin{Vocab: -1, EOS: -1, path: filepath.Join(dir, manifestName)}
	if _, err := os.Lstat(o.path); os.IsNotExist(err) {
		return o, nil
	}
	v, err := strictjson.ParseFile(o.path, 16<<20, strictjson.Options{})
	if err != nil {
		return o, err
	}
	f := strictjson.NewFields(v)
	o.Tokenizer, o.Vocab, o.EOS = f.StrOr("tokenizer_sha256", ""), f.IntOr("vocab_size", -1), f.IntOr("eos", -1)
	o.policy = EOSPolicy(f.StrOr("eos_policy", ""))
	if source, ok := v.Get("source"); ok && source.Kind() == strictjson.Object {
		s := strictjson.NewFields(source)
		o.documents = s.IntOr("documents", 0)
		if writers := s.ValueOr("writers"); s.Err() == nil && writers.Kind() == strictjson.Object {
			o.Writers = map[string]Written{}
			for name, w := range writers.Members() {
				n := strictjson.NewFields(w)
				o.Writers[name] = Written{Records: n.IntOr("records", 0), Edited: n.IntOr("edited", 0)}
				if n.Err() != nil {
					return o, strictjson.Fault(o.path, v.Source(), n.Err())
				}
			}
		}
		if s.Err() != nil {
			return o, strictjson.Fault(o.path, v.Source(), s.Err())
		}
	}
	if err := f.Err(); err != nil {
		return o, strictjson.Fault(o.path, v.Source(), err)
	}
	if o.EOS > math.MaxInt32 {
		return o, fault.In(fault.Invalid, o.path, "eos is %d, which is no id", o.EOS).WithID("E-SHARD-013")
	}
	return o, nil
}

// Agrees refuses shards whose manifest says that they were made with another tokenizer than tok, that of the file named by of.
func (o ShardOrigin) Agrees(tok *tokenizer.Tokenizer, of string) error {
	if own := tok.IDsSHA256(); o.Tokenizer != "" && o.Tokenizer != own {
		return fault.In(fault.Invalid, o.path, "the shards were made with another tokenizer, of SHA-256 %s; that of %s has %s", o.Tokenizer, of, own).
			WithHint("encode the text again: apr tokenize encode-corpus --tokenizer %s", of).WithID("E-SHARD-012")
	}
	if n := tok.RealIDs(); o.Vocab >= 0 && o.Vocab != int64(n) {
		return fault.In(fault.Invalid, o.path, "vocab_size is %d; the tokenizer of %s has %d ids", o.Vocab, of, n).WithID("E-SHARD-013")
	}
	eos, err := EndOfText(tok)
	if err != nil {
		return err
	}
	if o.EOS >= 0 && o.EOS != int64(eos) {
		return fault.In(fault.Invalid, o.path, "eos is %d; in the tokenizer of %s id %d ends a document", o.EOS, of, eos).WithID("E-SHARD-013")
	}
	return nil
}

// Holds refuses a manifest that the ids of the shards contradict.
func (o ShardOrigin) Holds(t *Tokens) error {
	switch o.policy {
	case "", EOSNone:
		return nil
	case EOSBetween:
	default:
		return fault.In(fault.Invalid, o.path, "eos_policy %q is not between or none", o.policy).WithID("E-SHARD-013")
	}
	if n := int64(len(t.Docs)); n < o.documents-1 { // the last one may be empty
		return fault.In(fault.Invalid, o.path, "eos_policy is between, but the ids hold %d ends of documents for %d documents", n, o.documents).WithID("E-SHARD-013")
	}
	return nil
}
