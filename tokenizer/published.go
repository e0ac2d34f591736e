package tokenizer

import "fmt"

// published is what all published tokenizers have in common that have a token with this id.
type published struct {
	token   string
	id      int32
	pattern string // how they cut text, as pattern.cut has it; empty: they are SentencePiece
	begins  bool   // they put a begin of text in front
	except  string // not those that have this token too
	least   int    // with so many tokens at least; 0: any
}

// knownVocabularies tell a vocabulary by one token that has the same place in no other one. A vocabulary decides, and
// not the family of the model: a student of one family may have the tokenizer of another.
var knownVocabularies = []published{
	// Qwen 2 to 3:
	{token: "<|endoftext|>", id: 151643, pattern: "qwen2"},
	// Qwen 3.5:
	{token: "<|endoftext|>", id: 248044, pattern: "qwen35"},
	// Llama 3:
	{token: "<|begin_of_text|>", id: 128000, pattern: "llama-bpe", begins: true, except: "<|im_start|>"},
	// SmolLM 3 too:
	{token: "<|begin_of_text|>", id: 128000, pattern: "llama-bpe"},
	// gpt-oss, Phi-4-mini:
	{token: "<|endoftext|>", id: 199999, pattern: "gpt-4o"},
	// OLMo 2 and 3, Phi-4:
	{token: "<|endoftext|>", id: 100257, pattern: "llama-bpe"},
	// Granite 4:
	{token: "<|end_of_text|>", id: 100257, pattern: "llama-bpe"},
	{token: "<|endoftext|>", id: 50256, pattern: "gpt-2"},
	// Mistral Nemo, Ministral:
	{token: "[INST]", id: 3, pattern: "tekken", begins: true},
	// Mistral 7B, version 3:
	{token: "[INST]", id: 3, begins: true},
	// Gemma:
	{token: "<bos>", id: 2, begins: true},
	// Llama 1 and 2, Mistral 7B, not Phi-3:
	{token: "<s>", id: 1, begins: true, except: "<|assistant|>", least: 32000},
}

// Unpublished says what no published tokenizer of this vocabulary has: another way to cut text, and no begin of text.
func (t *Tokenizer) Unpublished() (lines []string) {
	for _, p := range knownVocabularies {
		text, bytes := t.text(p.id), p.pattern != ""
		if text != p.token || bytes != (t.pieces == nil) || len(t.tokens) < p.least || p.except != "" && t.names(p.except) {
			continue
		}
		said := fmt.Sprintf("as every published tokenizer does in which %q has id %d", p.token, p.id)
		if bytes && t.cut() != p.pattern {
			lines = append(lines, fmt.Sprintf("its pre-tokenizer cuts text as %q does, and not as %q, %s",
				t.cut(), p.pattern, said))
		}
		if p.begins && !t.addBOS {
			lines = append(lines, fmt.Sprintf("it puts no begin of text in front, %s: was it lost?", said))
		}
		return lines
	}
	return nil
}

// text returns the stored text of a token; empty: there is none.
func (t *Tokenizer) text(id int32) string {
	if int(id) >= len(t.tokens) || !t.tokens[id].real() {
		return ""
	}
	return t.tokens[id].text
}

// names reports whether a token has this stored text.
func (t *Tokenizer) names(text string) bool {
	for _, k := range t.tokens {
		if k.real() && k.text == text {
			return true
		}
	}
	return false
}
