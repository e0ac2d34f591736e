package main

import (
	"context"
	"fmt"

	"apr/device"
	"apr/device/dry"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tokenizer"
)

// draftTrial is how many tokens are made without the draft first.
const draftTrial = 8

// draftOptions are the options of a draft.
type draftOptions struct {
	path   string
	tokens int
}

func (o *draftOptions) table() []cli.Option {
	return []cli.Option{
		{Name: "draft", Foreign: []string{"draft-model", "model-draft", "speculative-model", "assistant-model"}, Model: true,
			Value: cli.String(&o.path, ""),
			Help:  "let this smaller model with the same tokenizer propose tokens; the text is the model's own all the same"},
		{Name: "draft-tokens", Foreign: []string{"draft-max", "num-speculative-tokens", "num-assistant-tokens"},
			Value: cli.Int(&o.tokens, 4).In(1, 32), Help: "tokens that --draft proposes at a time"},
	}
}

// check refuses what a draft does not go with.
func (o *runOptions) checkDraft(e *cli.Env) error {
	switch {
	case e.Settings.Given("draft-tokens") && o.draft.path == "":
		return fault.New(fault.Usage, "--draft-tokens belongs to --draft")
	case o.draft.path != "" && (o.batch != "" || o.talks):
		return fault.New(fault.Unavailable, "not built yet: --draft with --batch-jsonl or in a chat: give one prompt")
	}
	return nil
}

// openDraft opens the draft and compares its tokenizer with the model's; nil: there is none.
func (o *runOptions) openDraft(ctx context.Context, e *cli.Env, f *modelfile.Files) (*modelfile.Files, error) {
	if o.draft.path == "" {
		return nil, nil
	}
	d, err := openFiles(ctx, e, o.draft.path)
	if err != nil {
		return nil, err
	}
	tok, err := f.Tokenizer()
	if err == nil {
		err = d.CheckTensors()
	}
	if err == nil {
		var small *tokenizer.Tokenizer
		if small, err = d.Tokenizer(); err == nil {
			if diff := tokenizer.Compare(tok, small); diff != nil {
				err = fault.In(fault.Invalid, o.draft.path, "its tokenizer differs from that of %s: %s", o.source, diff).
					WithHint("a draft proposes ids: both models must mean the same by them").WithID("E-DRAFT-001")
			}
		}
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// prepareDraft plans a text with a draft.
func (o *opened) prepareDraft(m, draft *model.Outline, tokens, prompt int, gen generate.Options) error {
	planned, ok := o.Device.(dry.Planned)
	if !ok {
		return nil
	}
	r, err := generate.DryRun{
		Target: planned.Target, Model: m, Component: device.StudentWeights, Form: generationForm,
		Prompt: prompt, Options: gen, Draft: draft, DraftTokens: tokens,
	}.Plan()
	if err != nil || o.gpu == nil {
		return err
	}
	return o.gpu.PrepareOnce(r)
}

// loadDraft loads the draft beside the model.
func (r *runner) loadDraft(d *modelfile.Files, room int) (err error) {
	if r.draft, err = model.LoadFrozenAs(r.dev, d, device.StudentWeights, generationForm); err != nil {
		return err
	}
	for _, m := range []*model.Model{r.m, r.draft} {
		if err := generate.Drafts(m, room); err != nil {
			return err
		}
	}
	return nil
}

// draftText is what the draft was worth, for people.
func draftText(st *generate.DraftStats) string {
	part := 0.0
	if st.Proposed > 0 {
		part = float64(st.Accepted) / float64(st.Proposed)
	}
	text := fmt.Sprintf("%.0f %% of the proposals that were read were kept", 100*part)
	if st.Plain != nil && st.PerSecond != nil {
		text += fmt.Sprintf("; %.1f tokens/s with it, %.1f without", *st.PerSecond, *st.Plain)
	}
	if st.Off {
		text += "; turned off: it did not pay"
	}
	return text
}
