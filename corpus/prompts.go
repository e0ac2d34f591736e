package corpus

import (
	"apr/internal/fault"
)

// Prompts are beginnings of a corpus' documents that a model goes on with: views, not copies.
//
//	a document with a mask       the ids before each run of targets, which is a reply; if it has none, all of it
//	                             but end-of-text
//	a document of targets alone  its first Plain ids, and those of every SeqLen+1 ids further on
type Prompts struct {
	Long int // prompts of later replies that leave no room for one and are left out

	tok   *Tokens
	spans [][2]int64
	words []*Words // of each span, what a teacher reads in its place; nil: the prompt
	docs  []int    // of each span, its document
	perm  []uint32
	epoch int64 // of perm; −1: none
}

// PromptOptions bound prompts.
type PromptOptions struct {
	SeqLen int // of the rows: a prompt and the id behind it have SeqLen+1 ids at most
	Plain  int // ids of a prompt from plain text; 0: plain text has none
}

// NewPrompts finds the prompts of t. Faults of kind Invalid name a document without a prompt, and one whose first
// prompt is longer than a row.
func NewPrompts(t *Tokens, o PromptOptions) (*Prompts, error) {
	p := &Prompts{tok: t, epoch: -1}
	if o.Plain > o.SeqLen {
		return nil, fault.New(fault.Usage, "--on-policy-prompt-tokens %d leave no room for a reply in a row of %d",
			o.Plain, o.SeqLen).WithID("E-CORPUS-080")
	}
	lo := int64(0)
	for i, d := range t.Docs {
		if err := p.add(i, lo, d.End, o); err != nil {
			return nil, err
		}
		lo = d.End
	}
	if len(p.spans) == 0 {
		return nil, fault.New(fault.Invalid, "no document is longer than the %d tokens of a prompt", o.Plain).
			WithHint("a smaller --on-policy-prompt-tokens").WithID("E-CORPUS-081")
	}
	return p, nil
}

// add finds the prompts of document i, ids [lo,hi).
func (p *Prompts) add(i int, lo, hi int64, o PromptOptions) error {
	mask := p.tok.Mask
	plain := true
	for at := lo; mask != nil && at < hi && plain; at++ {
		plain = mask[at] != 0
	}
	if plain {
		if o.Plain == 0 {
			return fault.New(fault.Invalid, "document %d of the data is plain text: nothing says where its prompt ends", i+1).
				WithHint("--on-policy-prompt-tokens N makes prompts of the first N tokens of each row of text").
				WithID("E-CORPUS-082")
		}
		for at := lo; at+int64(o.Plain) < hi-1; at += int64(o.SeqLen) + 1 {
			p.span(i, at, at+int64(o.Plain), nil)
		}
		return nil
	}
	first := true
	var words *Words
	if p.tok.Words != nil {
		words = p.tok.Words[i]
	}
	reply := func(end int64) error {
		long := end-lo > int64(o.SeqLen)
		switch {
		case long && first:
			return fault.New(fault.Invalid, "the prompt of document %d of the data has %d tokens: no room in a row of %d",
				i+1, end-lo, o.SeqLen).
				WithHint("a larger --seq-len, or leave it out").WithID("E-CORPUS-083")
		case long:
			p.Long++
		default:
			p.span(i, lo, end, words)
		}
		first = false
		return nil
	}
	if words != nil {
		return reply(lo + int64(words.At))
	}
	for at := lo + 1; at < hi; at++ {
		if mask[at] != 0 && mask[at-1] == 0 {
			if err := reply(at); err != nil {
				return err
			}
		}
	}
	if first && hi-1 > lo { // a prompt alone
		return reply(hi - 1)
	}
	if first {
		return fault.New(fault.Invalid, "document %d of the data has no prompt", i+1).WithID("E-CORPUS-084")
	}
	return nil
}

// Len returns the number of prompts.
func (p *Prompts) Len() int { return len(p.spans) }

// span adds a prompt, ids [lo,hi) of document i.
func (p *Prompts) span(i int, lo, hi int64, words *Words) {
	p.spans, p.words, p.docs = append(p.spans, [2]int64{lo, hi}), append(p.words, words), append(p.docs, i)
}

// At returns the k-th prompt of the endless sequence of epochs, each in an order of its own: a function of the data,
// seed and k. teacher is what a teacher reads in its place: the same, unless the document has other words for it.
func (p *Prompts) At(k int64, seed uint64) (prompt, teacher []int32) {
	n := int64(len(p.spans))
	if epoch := k / n; epoch != p.epoch {
		p.perm, p.epoch = permutation(p.perm, int(n), seed, uint64(epoch)), epoch
	}
	i := p.perm[k%n]
	s := p.spans[i]
	prompt = p.tok.IDs[s[0]:s[1]]
	if w := p.words[i]; w != nil {
		return prompt, w.IDs
	}
	return prompt, prompt
}
