// Command onpolicy times on-policy steps from end to end: the student writes, the teacher scores what it wrote, the
// student learns from that. Weights are random, of published shapes, nothing ends a text, and all texts have one
// length: speed does not depend on what the numbers are.
//
//	onpolicy [-backend cuda] [-shape 7b:0.5b] [-teacher q4k|fp8|cublas] [-prompts 64] [-samples 8] [-prompt 128]
//
// [-tokens 512]
//
//	onpolicy -drafts [-shape 7b:0.5b] [-prompt 128] [-tokens 512]
//
// It prints one JSON object. bench/peer/torch_onpolicy.py is the same loop in PyTorch, bench/onpolicy/card.sh runs
// both.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/distill"
	"apr/generate"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/teacher"
)

// options are the flags.
type options struct {
	backend, shape, teacher          string
	prompts, samples, prompt, tokens int
	micro, chunk, rounds, vocab      int
	isDrafts                         bool
	table                            string
}

// round is what was measured of a step, in seconds.
type round struct {
	Sampling float64            `json:"sampling"`
	Training float64            `json:"training"` // with scoring
	Phases   map[string]float64 `json:"phases"`   // of training
	Loss     float64            `json:"loss"`
}

// result is what is printed. Speeds are those of the fastest round.
type result struct {
	Device    string  `json:"device"`
	Shape     string  `json:"shape"`
	Teacher   string  `json:"teacher"`
	Texts     int     `json:"texts"`
	Prompt    int     `json:"prompt_tokens"`
	Tokens    int     `json:"tokens"` // drawn of each text
	Load      float64 `json:"load_seconds"`
	First     round   `json:"first"`
	Rounds    []round `json:"rounds"`
	Sampled   float64 `json:"sampled_tokens_per_second"`
	PerSecond float64 `json:"tokens_per_second"`
}

func main() {
	var o options
	flag.StringVar(&o.backend, "backend", "cuda", "cuda or cpu")
	flag.StringVar(&o.shape, "shape", "7b:0.5b", "teacher and student, as in apr bench --shape, or config.json files")
	flag.StringVar(&o.teacher, "teacher", "q4k", "how the teacher is computed: q4k, fp8 or cublas")
	flag.IntVar(&o.prompts, "prompts", 64, "prompts of a step")
	flag.IntVar(&o.samples, "samples", 8, "texts for each prompt")
	flag.IntVar(&o.prompt, "prompt", 128, "tokens of a prompt")
	flag.IntVar(&o.tokens, "tokens", 512, "tokens drawn for each text")
	flag.IntVar(&o.micro, "micro", 16, "rows of which the student's activations exist at one time")
	flag.IntVar(&o.chunk, "chunk", 2048, "positions whose logits exist at one time")
	flag.IntVar(&o.rounds, "rounds", 2, "steps that are measured, behind a first one")
	flag.IntVar(&o.vocab, "vocab", 0, "ids that exist; 0: all that both models have")
	flag.BoolVar(&o.isDrafts, "drafts", false,
		"time the student as a draft of the teacher instead, with acceptance forced to 0.7")
	flag.StringVar(&o.table, "table", "", "print the table of this folder of card.sh, and run nothing")
	flag.Parse()
	if o.table != "" {
		if err := table(o.table); err != nil {
			fmt.Fprintln(os.Stderr, "onpolicy:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "onpolicy:", err)
		os.Exit(1)
	}
}

// open opens the device.
func (o options) open() (device.Device, func() error, error) {
	if o.backend == "cpu" {
		d, err := cpu.New(cpu.Options{})
		if err != nil {
			return nil, nil, err
		}
		return d, d.Close, nil
	}
	d, err := cuda.Open(cuda.Options{Compute: cuda.BF16})
	if err != nil {
		return nil, nil, err
	}
	return d, d.Close, nil
}

// shape is a published one, or that of a config.json.
func shape(name string) (arch.Config, error) {
	if strings.HasSuffix(name, ".json") {
		return modelfile.ReadConfig(name)
	}
	return bench.Shape(name)
}

// load puts both models on the device.
func (o options) load(dev device.Device, s device.Stream) (big, student *model.Model, err error) {
	names := strings.Split(o.shape, ":")
	if len(names) != 2 {
		return nil, nil, fmt.Errorf("-shape %s is not TEACHER:STUDENT", o.shape)
	}
	c, err := shape(names[0])
	if err != nil {
		return nil, nil, err
	}
	small, err := shape(names[1])
	if err != nil {
		return nil, nil, err
	}
	var f *modelfile.Files
	form := teacher.Backend(o.teacher).Form(false)
	if o.teacher == "fp8" {
		form = teacher.Backend("q4k").Form(true)
	}
	if form.Blocks {
		f, err = bench.RandomQuantised(c, 1, convert.Q4_K_M)
	} else {
		f = bench.RandomModel(c, 1)
	}
	if err != nil {
		return nil, nil, err
	}
	if big, err = model.LoadFrozenAs(dev, f, device.TeacherWeights, form); err != nil {
		return nil, nil, err
	}
	student = model.NewTrainable(dev, small)
	return big, student, student.LoadWeights(s, bench.RandomModel(small, 2))
}

// run measures and prints.
func (o options) run(ctx context.Context) (err error) {
	begun := time.Now()
	dev, closeDevice, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	s := dev.NewStream()
	big, student, err := o.load(dev, s)
	if err != nil {
		return err
	}
	most := min(big.Config.Vocab, student.Config.Vocab)
	if o.vocab == 0 || o.vocab > most {
		o.vocab = most
	}
	if o.isDrafts {
		return o.drafts(ctx, dev, big, student.Frozen())
	}
	rows, seqLen := o.prompts*o.samples, o.prompt+o.tokens-1
	if why := student.InStep(seqLen); why != "" {
		return fmt.Errorf("a student with %s writes no texts in lock-step", why)
	}
	writer := generate.NewTogether(student.Frozen(), s, rows, seqLen, o.vocab)
	defer writer.Free()
	tr := distill.NewTrainer(student, s, rows, seqLen)
	defer tr.Free()
	tr.Teacher = &teacher.Resident{Model: big, Group: teacher.GroupRows(dev.Info(), seqLen)}
	tr.Loss.Spec = device.LossSpec{Alpha: 1, Temperature: 1, Divergence: device.ReverseKL}
	tr.Loss.Vocab, tr.Loss.ChunkRows, tr.MicroRows = o.vocab, o.chunk, o.micro
	tr.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Constant, Peak: 1e-6, Steps: o.rounds + 1},
		AdamW:    device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}, MaxNorm: 1,
	}
	r := result{Device: dev.Info().Name, Shape: o.shape, Teacher: o.teacher, Texts: rows, Prompt: o.prompt,
		Tokens: o.tokens,
		Load:   time.Since(begun).Seconds()}
	drawn := float64(rows * o.tokens)
	for step := range o.rounds + 1 {
		one, err := o.step(ctx, writer, tr, step)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr,
			"step %d: sampling %.2f s (%.0f tokens/s), scoring and training %.2f s, %.0f tokens/s in all\n", step,
			one.Sampling, drawn/one.Sampling, one.Training, drawn/(one.Sampling+one.Training))
		if step == 0 {
			r.First = one
			continue
		}
		r.Rounds = append(r.Rounds, one)
		r.Sampled = max(r.Sampled, drawn/one.Sampling)
		r.PerSecond = max(r.PerSecond, drawn/(one.Sampling+one.Training))
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// step lets the student write, and trains it on that.
func (o options) step(ctx context.Context, w *generate.Together, tr *distill.Trainer, step int) (r round, err error) {
	rng := rand.New(rand.NewPCG(7, uint64(step)))
	var requests []generate.Request
	for range o.prompts {
		prompt := make([]int32, o.prompt)
		for i := range prompt {
			prompt[i] = rng.Int32N(int32(o.vocab))
		}
		for k := range o.samples {
			requests = append(requests, generate.Request{Prompt: prompt, Sample: k, Options: generate.Options{
				Temperature: 1, Seed: uint64(step), MaxTokens: o.tokens}})
		}
	}
	begun := time.Now()
	texts, err := w.Write(ctx, requests)
	if err != nil {
		return r, err
	}
	r.Sampling = time.Since(begun).Seconds()
	begun = time.Now()
	seqLen := o.prompt + o.tokens - 1
	b := corpus.Batch{Rows: len(texts), SeqLen: seqLen}
	for i, t := range texts {
		ids := append(append([]int32(nil), requests[i].Prompt...), t.IDs...)
		if len(ids) != seqLen+1 {
			return r, fmt.Errorf("text %d has %d tokens, want %d", i, len(ids), seqLen+1)
		}
		b.Tokens, b.Targets = append(b.Tokens, ids[:seqLen]...), append(b.Targets, ids[1:]...)
		for at := range seqLen {
			counts := uint8(0)
			if at+1 >= o.prompt {
				counts = 1
			}
			b.Mask = append(b.Mask, counts)
		}
	}
	rec, err := tr.Apply(ctx, b)
	if err != nil {
		return r, err
	}
	r.Training, r.Phases, r.Loss = time.Since(begun).Seconds(), map[string]float64{}, rec.Loss
	for p := range device.NumPhases {
		if d := rec.Phases[p].Seconds(); d > 0 {
			r.Phases[p.String()] = d
		}
	}
	return r, nil
}
