package main

import (
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
)

// policyOptions are the options of rows that the student writes itself.
type policyOptions struct {
	Fraction                     float64
	MaxTokens, PromptTokens, Lag int
	Estimator                    string
}

const groupPolicy = "Rows that the student writes itself"

func (o *distillOptions) policyTable() []cli.Option {
	p := &o.Policy
	return []cli.Option{
		{Name: "on-policy", Value: cli.Float(&p.Fraction, 0).In(0, 1),
			Help: "let the student write this fraction of each step's rows, from prompts of --data; " +
				"the teacher corrects them. Implies --alpha 1 --divergence reverse-kl"},
		{Name: "on-policy-max-tokens", Value: cli.Int(&p.MaxTokens, 256).AtLeast(1),
			Help: "tokens that the student adds to a prompt at most; a row has room for --seq-len"},
		{Name: "on-policy-prompt-tokens", Value: cli.Int(&p.PromptTokens, 0).AtLeast(1).Or(0),
			Help: "take the first N tokens of each row of plain text as a prompt; 0 = plain text is no prompt"},
		{Name: "on-policy-estimator", Value: cli.Enum(&p.Estimator, "full", "full", "sampled"),
			Help: "divergence at each position: over the full vocabulary, or by the sampled token alone (reverse-kl only)"},
		{Name: "on-policy-lag", Value: cli.Int(&p.Lag, 0).In(0, 1),
			Help: "updates by which the weights that write are older than those that learn: 1 writes a step's rows " +
				"beside the step before (on CPUs and with CUDA; elsewhere before it)"},
	}
}

// onPolicy is what the options say; Samples of a prompt are those of --samples-per-prompt.
func (o *distillOptions) onPolicy() distill.OnPolicy {
	p := o.Policy
	return distill.OnPolicy{Fraction: p.Fraction, MaxTokens: p.MaxTokens, PromptTokens: p.PromptTokens,
		Samples: o.Texts.SamplesPerPrompt, Sampled: p.Estimator == "sampled", Lag: p.Lag}
}

// impliedByPolicy is what --on-policy implies: text of the student's own has nothing but the teacher's opinion to
// teach.
func (o *distillOptions) impliedByPolicy(e *cli.Env, opts []cli.Option) error {
	if o.Policy.Fraction == 0 || o.writes() {
		return nil
	}
	for _, v := range [][2]string{{"alpha", "1"}, {"divergence", "reverse-kl"}} {
		if err := e.Imply(opts, "on-policy", v[0], v[1]); err != nil {
			return err
		}
	}
	return nil
}

// checkPolicy judges the options of rows that the student writes.
func (o *distillOptions) checkPolicy(s cli.Settings) error {
	if o.Policy.Fraction > 0 && o.precomputes() {
		return fault.New(fault.Usage, "--on-policy has no effect with --stage precompute: "+
			"nothing is known of what the student is going to write")
	}
	return nil
}

// policyIdle are the options that --on-policy alone reads.
func (o *distillOptions) policyIdle(s cli.Settings) (all []idle) {
	for _, name := range []string{"on-policy-max-tokens", "on-policy-prompt-tokens", "on-policy-estimator",
		"on-policy-lag"} {
		all = append(all, idle{name, s.Changed(name) && o.Policy.Fraction == 0, "without --on-policy"})
	}
	return all
}
