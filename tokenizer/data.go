package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"apr/internal/fault"
)

// Data is the flat form of a tokenizer, as it is in .apr metadata (keys tokenizer.*) and in GGUF.
type Data struct {
	Vocabulary   []string  // index = id: byte-level text of normal tokens, literal text of the others
	Merges       []string  // "left right" in rank order
	TokenType    []int     // one Kind per id, or nil: then tokens that look like <|…|> or <x> are Control
	PreType      string    // qwen2, llama-bpe, …: a pattern; SentencePiece has none
	Model        string    // gpt2 (or empty, or bpe), which is byte-level BPE; llama and gemma4, which are SentencePiece
	Scores       []float32 // SentencePiece: one per token, or nil; they stand for the merges where none are listed
	Settings     []string  // "name=value": what Model and PreType do not say
	BOS          int32     // None if there is none
	EOS          int32
	Pad          int32
	AddBOS       bool
	ChatTemplate string
}

// FromData makes a tokenizer of its flat form. path names the file in errors, which are of kind fault.Format.
func FromData(path string, d Data) (*Tokenizer, error) {
	c, err := d.content()
	if err != nil {
		return nil, inFile(path, err)
	}
	t, err := build(c)
	if err != nil {
		return nil, inFile(path, err)
	}
	return t, nil
}

func (d Data) content() (content, error) {
	c, err := d.start()
	if err != nil {
		return c, err
	}
	if err := d.checkLengths(len(d.Vocabulary)); err != nil {
		return c, err
	}
	results := make(map[string]bool, len(d.Merges))
	if d.Scores == nil || len(d.Merges) > 0 {
		c.merges = make([][2]string, len(d.Merges))
	}
	for i, m := range d.Merges {
		left, right, ok := strings.Cut(m, " ")
		if !ok || left == "" || right == "" {
			return c, refuse("E-TOK-006", "merges", "%q is not two parts with a space between", clip(m)).At("merge %d", i)
		}
		c.merges[i] = [2]string{left, right}
		results[left+right] = true
	}
	c.tokens = make([]token, len(d.Vocabulary))
	for i, text := range d.Vocabulary {
		kind := Normal
		if d.TokenType != nil {
			kind = Kind(d.TokenType[i])
		} else if text == "" {
			kind = Unused
		} else if looksSpecial(text) && !results[text] {
			kind = Control
		}
		if err := d.checkKind(i, kind); err != nil {
			return c, err
		}
		if kind == Unknown {
			kind = Control
		}
		c.tokens[i] = token{text: text, kind: kind}
	}
	return c, c.apply(d.Settings)
}

// start returns the content that Model and PreType stand for.
func (d Data) start() (content, error) {
	c := content{bos: d.BOS, eos: d.EOS, pad: d.Pad, addBOS: d.AddBOS, chatTemplate: d.ChatTemplate}
	switch d.Model {
	case "llama":
		c.pieces = &pieceRules{prefix: prefixEach, fuseUnk: true, unk: None, model: d.Model, scores: d.Scores}
	case "gemma4":
		c.pieces = &pieceRules{prefix: prefixNone, fuseUnk: true, unk: None, model: d.Model, scores: d.Scores}
	case "", "gpt2", "bpe":
		if d.Scores != nil {
			return c, refuse("E-TOK-004", "scores", "byte-level BPE has none")
		}
		if c.pattern = patternNamed(d.PreType); c.pattern == nil {
			return c, unknownPattern(d.PreType)
		}
		c.nfc, c.ignoreMerges = c.pattern.nfc, c.pattern.ignoreMerges
	default:
		return c, unknownModel(d.Model)
	}
	return c, nil
}

func unknownModel(name string) *fault.Error {
	return refuse("E-TOK-021", "model", "tokenizer of type %q is not supported; supported: %s", clip(name), strings.Join(models, ", "))
}

// CheckModel refuses a type of tokenizer that is not known; "" and "bpe" are byte-level BPE.
func CheckModel(name string) error {
	if name == "" || name == "bpe" || slices.Contains(models, name) {
		return nil
	}
	return unknownModel(name)
}

// DefaultPreType is the pre-tokenizer of files that name none: they are Qwen2's.
const DefaultPreType = "qwen2"

// models are the types of tokenizers, by the names that GGUF gives them.
var models = []string{"gpt2", ModelPieces, "gemma4"}

// ModelPieces is the type of SentencePiece vocabularies whose texts begin with a space.
const ModelPieces = "llama"

// checkLengths refuses too many tokens, and types that are not as many; n is the number of tokens.
func (d Data) checkLengths(n int) error {
	if d.TokenType != nil && len(d.TokenType) != n {
		return refuse("E-TOK-004", "token_type", "%d types for %d tokens", len(d.TokenType), n)
	}
	if d.Scores != nil && len(d.Scores) != n {
		return refuse("E-TOK-004", "scores", "%d scores for %d tokens", len(d.Scores), n)
	}
	for i, s := range d.Scores {
		if s-s != 0 {
			return refuse("E-TOK-004", "scores", "the score of token %d is %v, not a finite number", i, s)
		}
	}
	if n > MaxID+1 {
		return refuse("E-TOK-004", "vocabulary", "%d tokens; at most %d are possible", n, MaxID+1)
	}
	return nil
}

// checkKind refuses a type that the token id cannot have.
func (d Data) checkKind(id int, k Kind) error {
	if k == Byte && (d.Model == "llama" || d.Model == "gemma4") {
		return nil
	}
	if k < Normal || k > Unused {
		return refuse("E-TOK-004", "token_type", "token %d has type %d, which byte-level BPE does not know", id, int(k))
	}
	return nil
}

func unknownPattern(name string) *fault.Error {
	return refuse("E-TOK-008", "pre_type", "unknown pre-tokenizer %q", clip(name)).WithHint("known: %s", strings.Join(patternNames(), ", "))
}

// looksSpecial is the rule for vocabularies without types: <|…|>, or <x> and </x> with x of lower-case letters and _,
// at most 20 bytes in all.
func looksSpecial(s string) bool {
	if strings.HasPrefix(s, "<|") && strings.HasSuffix(s, "|>") && len(s) >= 4 {
		return true
	}
	if len(s) > 20 || len(s) < 3 || s[0] != '<' || s[len(s)-1] != '>' {
		return false
	}
	name := strings.TrimPrefix(s[1:len(s)-1], "/")
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == ""
}

// Data returns the flat form. Ids without a token get the text [PADn] and the type Unused.
func (t *Tokenizer) Data() Data {
	d := Data{
		Vocabulary: make([]string, len(t.tokens)), TokenType: make([]int, len(t.tokens)),
		Merges: make([]string, len(t.rules.pairs)), Model: "gpt2", Settings: t.settings(),
		BOS: t.bos, EOS: t.eos, Pad: t.pad, AddBOS: t.addBOS, ChatTemplate: t.chatTemplate,
	}
	if t.pieces == nil {
		d.PreType = t.pattern.name
	} else {
		d.Model, d.Scores = t.stored()
		if d.PreType = "default"; d.Model == "gemma4" {
			d.PreType = "gemma4"
		}
	}
	for id, k := range t.tokens {
		d.Vocabulary[id], d.TokenType[id] = k.text, int(k.kind)
		if t.listedNormal(k) {
			d.TokenType[id] = int(Normal)
		}
		if !k.real() {
			d.Vocabulary[id], d.TokenType[id] = fmt.Sprintf("[PAD%d]", id), int(Unused)
		}
	}
	for rank, p := range t.rules.pairs {
		d.Merges[rank] = t.tokens[p[0]].text + " " + t.tokens[p[1]].text
	}
	return d
}

// Difference is the first thing in which two tokenizers differ.
type Difference struct {
	What string // "token", "kind", "merge", "score", "pattern" or "setting"
	At   int    // token id (of a score too), or rank of the merge, or place among the settings
	A, B string // the two texts; empty where one tokenizer has nothing there
}

// String says what differs, for a message about two models that must share a tokenizer.
func (d *Difference) String() string {
	return fmt.Sprintf("%s %d is %q and %q", d.What, d.At, clip(d.A), clip(d.B))
}

// Compare returns the first difference of a and b, or nil if they have the same ids and turn words into the same ones:
// all tokens by id, then their kinds, the merges, the pattern, normaliser and ignore_merges. Chat template and begin, end
// and padding ids do not count, nor does what only matters at the begin of a text or beside added tokens, where files of
// one model differ by format: the way in which SentencePiece puts a ▁ in front (whether it does so counts), lstrip, rstrip,
// normalized. Merges of SentencePiece count as the scores that they stand for, if they do.
func Compare(a, b *Tokenizer) *Difference {
	for id := range max(len(a.tokens), len(b.tokens)) {
		x, _ := a.Bytes(int32(id))
		y, _ := b.Bytes(int32(id))
		if x != y || a.has(int32(id)) != b.has(int32(id)) {
			return &Difference{"token", id, x, y}
		}
	}
	for id := range a.tokens {
		if x, y := a.Kind(int32(id)), b.Kind(int32(id)); x != y {
			return &Difference{"kind", id, fmt.Sprint(int(x)), fmt.Sprint(int(y))}
		}
	}
	if d := compareMerges(a, b); d != nil {
		return d
	}
	if x, y := a.cut(), b.cut(); x != y {
		return &Difference{"pattern", 0, x, y}
	}
	x, y := a.identity(), b.identity()
	for i := range x {
		if x[i] != y[i] {
			return &Difference{"setting", i, x[i], y[i]}
		}
	}
	return nil
}

// compareMerges returns the first difference of the merges of a and b, whose tokens are the same.
func compareMerges(a, b *Tokenizer) *Difference {
	if a.pieces != nil && b.pieces != nil {
		if x, y := a.pieces.scored(), b.pieces.scored(); x != nil && y != nil {
			for id := range x {
				if x[id] != y[id] {
					return &Difference{"score", id, fmt.Sprint(x[id]), fmt.Sprint(y[id])}
				}
			}
			return nil
		}
	}
	for rank := range max(len(a.rules.pairs), len(b.rules.pairs)) {
		if x, y := a.mergeText(rank), b.mergeText(rank); x != y {
			return &Difference{"merge", rank, x, y}
		}
	}
	return nil
}

// cut names how texts are cut into pre-tokens.
func (t *Tokenizer) cut() string {
	if t.pieces != nil {
		return sentencePiece
	}
	return t.pattern.cut()
}

// sentencePiece is the PreType of an Outline where there is no pattern.
const sentencePiece = "sentencepiece"

// identity returns the settings that change the ids of words.
func (t *Tokenizer) identity() [3]string {
	prefix := t.pieces != nil && t.pieces.prefix.inFront()
	return [3]string{fmt.Sprintf("nfc=%t", t.nfc), fmt.Sprintf("ignore_merges=%t", t.whole != nil), fmt.Sprintf("prefix=%t", prefix)}
}

func (t *Tokenizer) mergeText(rank int) string {
	if rank >= len(t.rules.pairs) {
		return ""
	}
	p := t.rules.pairs[rank]
	return t.tokens[p[0]].text + " " + t.tokens[p[1]].text
}
