package modelfile

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"apr/arch"
	"apr/format/gguf"
	"apr/tensor"
	"apr/tokenizer"
)

// quantizationVersion is the version of ggml's block formats.
const quantizationVersion = 2

// PrunedKey holds how a model was cut out of another, as JSON.
const PrunedKey = "apr.prune"

// GGUFOrigin is what a GGUF file says about where a model comes from. Empty strings are left out.
type GGUFOrigin struct {
	Name, Author, Version, Description, License string
	Learned                                     string // see LearnedText
	Pruned                                      string // see PrunedKey
	Writers                                     []string
}

// SaveGGUF writes a GGUF file with configuration and tokenizer, under the keys that llama.cpp's converter writes. The
// vocabulary is filled up with unused tokens to the rows of the embedding, as llama.cpp wants it. A tied head must not be
// among the tensors. A model without a tokenizer (nil) can be read back, not run.
func SaveGGUF(path string, c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, origin GGUFOrigin, force bool) error {
	stored, err := GGUFTensors(c, tensors)
	if err != nil {
		return err
	}
	return gguf.Write(path, stored, gguf.Options{Force: force, Metadata: GGUFMetadata(c, tok, tensors, origin)})
}

// GGUFTensors returns the tensors of a GGUF file that hold the sources of slots, and the tables of its rotary embeddings.
func GGUFTensors(c arch.Config, tensors []tensor.Source) ([]tensor.Source, error) {
	stored, err := placed(c, tensors, func(s arch.Slot) arch.Place { return s.GGUF })
	if err != nil {
		return nil, err
	}
	for _, t := range arch.GGUFTables(c) {
		raw := make([]byte, 4*len(t.Values))
		tensor.Narrow(raw, t.Values, tensor.F32)
		stored = append(stored, tensor.BytesSource(tensor.Info{Name: t.Name, DType: tensor.F32, Shape: []int{len(t.Values)}}, raw))
	}
	return stored, nil
}

// GGUFMetadata returns keys and values in the order of llama.cpp's converter; see SaveGGUF.
func GGUFMetadata(c arch.Config, tok *tokenizer.Tokenizer, tensors []tensor.Source, origin GGUFOrigin) []gguf.KV {
	keys := arch.GGUFMetadata(c)
	list := []gguf.KV{gguf.KV(keys[0]), {Key: "general.type", Value: "model"}}
	add := func(key string, value any) { list = append(list, gguf.KV{Key: key, Value: value}) }
	for _, s := range []struct{ key, value string }{
		{"name", origin.Name}, {"author", origin.Author}, {"version", origin.Version}, {"description", origin.Description}, {"license", origin.License},
	} {
		if s.value != "" {
			add("general."+s.key, s.value)
		}
	}
	add("general.size_label", sizeLabel(c.Parameters()))
	for _, k := range keys[1:] {
		list = append(list, gguf.KV(k))
	}
	if tok != nil {
		list = append(list, ggufTokenizer(c, tok)...)
	} else {
		ids := ggufIDs(tokenizer.None, c.BOS, tokenizer.None, first(c.EOS), int32(max(c.Pad, -1)))
		list = append(list, append(ids, furtherEnds(c, ids)...)...)
	}
	add("general.quantization_version", uint32(quantizationVersion))
	add("general.file_type", fileType(tensors))
	if origin.Learned != "" {
		add(LearnedKey, origin.Learned)
	}
	if len(origin.Writers) > 0 {
		add(WritersKey, strings.Join(origin.Writers, " "))
	}
	if origin.Pruned != "" {
		add(PrunedKey, origin.Pruned)
	}
	return list
}

// ggufTokenizer returns the keys of the tokenizer. Begin and end that only the configuration names are taken from it.
func ggufTokenizer(c arch.Config, tok *tokenizer.Tokenizer) []gguf.KV {
	d := tok.Data()
	kinds := make([]int32, 0, c.Vocab)
	for _, k := range d.TokenType {
		kinds = append(kinds, int32(k))
	}
	for id := len(d.Vocabulary); id < c.Vocab; id++ {
		d.Vocabulary, kinds = append(d.Vocabulary, fmt.Sprintf("[PAD%d]", id)), append(kinds, int32(tokenizer.Unused))
	}
	list := []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: d.Model}, {Key: "tokenizer.ggml.pre", Value: d.PreType},
		{Key: "tokenizer.ggml.tokens", Value: d.Vocabulary}, {Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.merges", Value: d.Merges},
	}
	real := func(id int) int {
		if id >= 0 && tok.Kind(int32(id)) == tokenizer.Unused {
			return -1 // readers want text for it
		}
		return id
	}
	list = append(list, ggufIDs(d.BOS, real(c.BOS), d.EOS, real(first(c.EOS)), d.Pad)...)
	list = append(list, furtherEnds(c, list)...)
	list = append(list, gguf.KV{Key: "tokenizer.ggml.add_bos_token", Value: d.AddBOS})
	list = append(list, tok.GGUFSettings(c.Vocab)...)
	if d.ChatTemplate != "" {
		list = append(list, gguf.KV{Key: "tokenizer.chat_template", Value: d.ChatTemplate})
	}
	return list
}

// furtherEnds returns the keys of ids that end a text beside the one that is named already.
func furtherEnds(c arch.Config, named []gguf.KV) (list []gguf.KV) {
	names := []string{"eot", "eom"}
	for _, id := range c.EOS {
		eos := gguf.KV{Key: "tokenizer.ggml.eos_token_id", Value: uint32(id)}
		if len(list) < len(names) && !slices.Contains(named, eos) {
			list = append(list, gguf.KV{Key: "tokenizer.ggml." + names[len(list)] + "_token_id", Value: uint32(id)})
		}
	}
	return list
}

// first returns the first id, or −1.
func first(ids []int) int {
	if len(ids) == 0 {
		return -1
	}
	return ids[0]
}

// ggufIDs returns the keys of begin, end and padding; those of the tokenizer count before those of the configuration.
func ggufIDs(bos int32, configBOS int, eos int32, configEOS int, pad int32) []gguf.KV {
	var list []gguf.KV
	for _, s := range []struct {
		name   string
		id     int32
		config int
	}{{"eos", eos, configEOS}, {"padding", pad, -1}, {"bos", bos, configBOS}} {
		if s.id == tokenizer.None {
			s.id = int32(s.config)
		}
		if s.id >= 0 {
			list = append(list, gguf.KV{Key: "tokenizer.ggml." + s.name + "_token_id", Value: uint32(s.id)})
		}
	}
	return list
}

// sizeLabel is the number of parameters as llama.cpp's converter rounds it: 6.9M, 494M, 1.5B.
func sizeLabel(n int64) string {
	x, suffix := float64(n)/1e3, "K"
	for _, s := range []struct {
		over   float64
		suffix string
	}{{1e6, "M"}, {1e9, "B"}, {1e12, "T"}} {
		if float64(n) > s.over {
			x, suffix = float64(n)/s.over, s.suffix
		}
	}
	if math.RoundToEven(x) < 10 {
		return fmt.Sprintf("%.1f%s", x, suffix)
	}
	return fmt.Sprintf("%.0f%s", x, suffix)
}

// fileTypes are llama.cpp's names of a whole file's types.
var fileTypes = map[tensor.DType]uint32{
	tensor.F32: 0, tensor.F16: 1, tensor.Q4_0: 2, tensor.Q8_0: 7, tensor.Q5_0: 8, tensor.Q4_K: 14, tensor.Q5_K: 16, tensor.Q6_K: 18, tensor.IQ4_NL: 25, tensor.IQ4_XS: 30, tensor.BF16: 32,
	tensor.MXFP4: 38, tensor.Q2_K: 10, tensor.Q3_K: 11,
}

// fileType is general.file_type: the type of most elements. Q4_K and Q5_K with Q6_K among them are the mixes of
// middle size, Q4_K_M and Q5_K_M, and Q3_K with Q4_K is Q3_K_M.
func fileType(tensors []tensor.Source) uint32 {
	count := map[tensor.DType]int64{}
	for _, t := range tensors {
		count[t.DType] += t.Elements()
	}
	best := tensor.F32
	for d := range fileTypes {
		if count[d] > count[best] || count[d] == count[best] && d < best {
			best = d
		}
	}
	code := fileTypes[best]
	if (best == tensor.Q4_K || best == tensor.Q5_K) && count[tensor.Q6_K] > 0 || best == tensor.Q3_K && count[tensor.Q4_K] > 0 {
		code++ // Q4_K_M is 15, Q5_K_M 17, Q3_K_M 12
	}
	return code
}
