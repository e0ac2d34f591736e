package corpus

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"apr/internal/fault"
	"apr/tokenizer"
)

// Encoder is what this package needs of a tokenizer. It must be safe for concurrent use.
type Encoder interface {
	// AppendText appends the ids of a document's text, none of which begins or ends it.
	AppendText(ids []int32, text string) []int32

	// AppendChat appends the ids of a conversation and, for each, 1 if the assistant wrote it, else 0.
	AppendChat(ids []int32, written []uint8, messages []Message) ([]int32, []uint8, error)
}

// Turns say which targets of a conversation count in the loss.
type Turns int

// The choices of EncodeOptions.Turns.
const (
	AutoTurns Turns = iota // the assistant's in conversations, everything in texts
	AllTurns               // everything
)

// EncodeOptions say how documents become ids.
type EncodeOptions struct {
	Read    ReadOptions
	EOS     int32 // end-of-text id, put behind every document
	Vocab   int   // ids must be below it
	Turns   Turns
	NFC     bool // bring text into normal form C first, whatever the tokenizer does
	Workers int  // goroutines that encode; 0: one per CPU. The result does not depend on it.
}

// Load reads the documents of paths and encodes them in parallel, in data order:
//
//	for each document d: IDs += ids(d) + EOS
//
// The end-of-text id after a text is a target; after a conversation whose assistant turns alone count it is not.
// Errors are those of Read, of the encoder, and ids that are not below Vocab; the Report comes with each of them.
func Load(ctx context.Context, paths []string, enc Encoder, opt EncodeOptions) (*Tokens, *Report, error) {
	t := &Tokens{EOS: opt.EOS}
	report, err := encodeAll(ctx, paths, enc, opt, func(e *encoded) error {
		t.add(e)
		return nil
	})
	if err != nil {
		return nil, report, err
	}
	return t, report, nil
}

// add appends one document.
func (t *Tokens) add(e *encoded) {
	if e.mask != nil && t.Mask == nil {
		t.Mask = ones(make([]uint8, 0, len(t.IDs)+len(e.ids)+1), len(t.IDs))
	}
	t.IDs = append(append(t.IDs, e.ids...), t.EOS)
	switch {
	case e.mask != nil:
		t.Mask = append(append(t.Mask, e.mask...), 0)
	case t.Mask != nil:
		t.Mask = ones(t.Mask, len(e.ids)+1)
	}
	t.Docs = append(t.Docs, Doc{End: int64(len(t.IDs)), Bytes: e.bytes, Hash: e.hash})
	if e.words != nil && t.Words == nil {
		t.Words = make([]*Words, len(t.Docs)-1, max(2*len(t.Docs), 64))
	}
	if t.Words != nil {
		t.Words = append(t.Words, e.words)
	}
	if e.sourced {
		t.Sources = append(t.Sources, e.source)
	}
}

// ones appends n ones.
func ones(mask []uint8, n int) []uint8 {
	for range n {
		mask = append(mask, 1)
	}
	return mask
}

// encoded is one document's ids, without end-of-text.
type encoded struct {
	ids   []int32
	mask  []uint8 // nil: all ones
	bytes int64
	hash  Hash
	chat  bool
	words *Words // of a teacher that reads other ones; nil: it does not

	source  string
	sourced bool // sources were asked for
}

// group is what a worker encodes at a time.
type group struct {
	docs []Document
	out  []encoded
	err  error
	done chan struct{}
}

// Size of a group: large enough to make hand-over cheap, small enough to keep all workers busy.
const (
	groupBytes = 256 << 10
	groupDocs  = 256
)

// encodeAll streams documents through workers and hands the results to collect in data order, in bounded memory: at
// most four groups a worker are under way. The first error in data order ends it.
func encodeAll(ctx context.Context, paths []string, enc Encoder, opt EncodeOptions, collect func(*encoded) error) (*Report, error) {
	workers := opt.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	work, order := make(chan *group), make(chan *group, 4*workers)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	for range workers {
		wg.Go(func() {
			for g := range work {
				g.encode(enc, opt)
				close(g.done)
			}
		})
	}
	var report *Report
	var readErr error
	wg.Go(func() {
		defer close(order)
		defer close(work)
		report, readErr = readGroups(ctx, paths, opt.Read, work, order)
	})

	err := collectGroups(order, collect)
	if err != nil {
		cancel()
		for range order { // until the reader has closed it, so that report is complete
		}
		return report, err
	}
	if readErr != nil && outer.Err() != nil {
		return report, outer.Err()
	}
	return report, readErr
}

// readGroups reads documents into groups and sends each to the collector's queue, then to a worker.
func readGroups(ctx context.Context, paths []string, opt ReadOptions, work, order chan<- *group) (*Report, error) {
	g, size := &group{done: make(chan struct{})}, int64(0)
	send := func() error {
		for _, c := range []chan<- *group{work, order} {
			select {
			case c <- g:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		g, size = &group{done: make(chan struct{})}, 0
		return nil
	}
	report, err := Read(ctx, paths, opt, func(d Document) error {
		g.docs = append(g.docs, d)
		size += d.Bytes()
		if size >= groupBytes || len(g.docs) >= groupDocs {
			return send()
		}
		return nil
	})
	if len(g.docs) > 0 && ctx.Err() == nil { // what came before an error is encoded too: its own errors come first
		if sendErr := send(); err == nil {
			err = sendErr
		}
	}
	return report, err
}

// collectGroups hands on results in order until the first error.
func collectGroups(order <-chan *group, collect func(*encoded) error) error {
	for g := range order {
		<-g.done
		for i := range g.out {
			if err := collect(&g.out[i]); err != nil {
				return err
			}
		}
		if g.err != nil {
			return g.err
		}
	}
	return nil
}

// unencodable says which conversation err is of; an identifier of its own is the better one.
func (d *Document) unencodable(err error) error {
	f := d.fault(fault.Invalid, "the conversation cannot be encoded").Because(err)
	if cause := (*fault.Error)(nil); errors.As(err, &cause) && cause.ID != "" {
		return f
	}
	return f.WithID("E-CORPUS-061")
}

// encode encodes the documents of g up to the first error.
func (g *group) encode(enc Encoder, opt EncodeOptions) {
	g.out = make([]encoded, 0, len(g.docs))
	for i := range g.docs {
		d := &g.docs[i]
		e := encoded{bytes: d.Bytes(), hash: d.Hash(), chat: d.Messages != nil, source: d.Source, sourced: opt.Read.Sources}
		if opt.NFC {
			d.normalise()
		}
		if e.chat {
			e.ids, e.mask, g.err = enc.AppendChat(nil, []uint8{}, d.Messages)
			if g.err != nil {
				g.err = d.unencodable(g.err)
				return
			}
			asks := d.Teacher != nil || d.bare
			if asks {
				g.err = d.ask(&e, enc)
			}
			if g.err != nil {
				g.err = d.unencodable(g.err)
				return
			}
			if opt.Turns == AllTurns && !asks {
				e.mask = nil
			}
		} else {
			e.ids = enc.AppendText(make([]int32, 0, len(d.Text)/3+1), d.Text)
		}
		if g.err = checkVocab(d, e.ids, opt.Vocab); g.err != nil {
			return
		}
		if e.words != nil {
			if g.err = checkVocab(d, e.words.IDs, opt.Vocab); g.err != nil {
				return
			}
		}
		g.out = append(g.out, e)
	}
	g.docs = nil
}

// normalise brings text and contents into NFC.
func (d *Document) normalise() {
	d.Text = tokenizer.NFC(d.Text)
	for i := range d.Messages {
		m := &d.Messages[i]
		m.Content, m.JSON = tokenizer.NFC(m.Content), tokenizer.NFC(m.JSON)
	}
	for i := range d.Teacher {
		m := &d.Teacher[i]
		m.Content, m.JSON = tokenizer.NFC(m.Content), tokenizer.NFC(m.JSON)
	}
}

// checkVocab refuses ids outside [0,vocab).
func checkVocab(d *Document, ids []int32, vocab int) error {
	for i, id := range ids {
		if id < 0 || int64(id) >= int64(vocab) {
			return d.fault(fault.Invalid, "token %d has id %d, the vocabulary only %d", i+1, id, vocab).
				WithHint("the tokenizer is not the model's").WithID("E-CORPUS-062")
		}
	}
	return nil
}

// fault returns a fault about d.
func (d *Document) fault(k fault.Kind, format string, args ...any) *fault.Error {
	e := fault.In(k, d.Path, format, args...)
	if d.Record > 0 {
		_ = e.At("record %d", d.Record) // At changes e in place
	}
	return e
}
