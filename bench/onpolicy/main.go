// Command onpolicy times on-policy steps from end to end: the student writes, the teacher scores what it wrote, the
// student learns from that. Weights are random, of published shapes, nothing ends a text, and all texts have one
// length: speed does not depend on what the numbers are.
//
//	onpolicy [-backend cuda] [-shape 7b:0.5b] [-teacher q4k|fp8|cublas] [-prompts 64] [-samples 8] [-prompt 128]
//	         [-tokens 512] [-lag 0,before,beside]
//	onpolicy -drafts [-shape 7b:0.5b] [-prompt 128] [-tokens 512]
//
// With -lag before or beside the texts of a step are written by the weights before the step before it, before that step
// or beside its gradients, as with --on-policy-lag 1. Several ways are timed one after the other.
//
// It prints a JSON object for each way. bench/peer/torch_onpolicy.py is the same loop in PyTorch,
// bench/onpolicy/card.sh runs both.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cpu"
	"apr/device/cuda"
	"apr/distill"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	"apr/teacher"
)

// options are the flags.
type options struct {
	backend, shape, teacher, lag     string
	prompts, samples, prompt, tokens int
	micro, chunk, rounds, vocab      int
	isDrafts, graphs                 bool
	table                            string
}

// round is what was measured of a step, in seconds. With -lag beside, sampling goes on while training does.
type round struct {
	Seconds  float64            `json:"seconds"` // from end to end
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
	Lag       string  `json:"lag"`
	Graphs    bool    `json:"graphs"`
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
	flag.StringVar(&o.lag, "lag", "0", "0, before, beside: by which weights texts are written, and when; or several")
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
	flag.BoolVar(&o.graphs, "graphs", true, "with -lag beside, give the device a pass in one launch")
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
	d, err := cuda.Open(cuda.Options{Compute: cuda.BF16, NoGraphs: !o.graphs})
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
	load := time.Since(begun).Seconds()
	for o.lag = range strings.SplitSeq(o.lag, ",") {
		if err := o.measure(ctx, dev, s, big, student, load); err != nil {
			return err
		}
	}
	return nil
}

// measure times steps with texts written in one way, and prints what it found.
func (o options) measure(ctx context.Context, dev device.Device, s device.Stream, big, student *model.Model,
	load float64) (err error) {
	rows, seqLen := o.prompts*o.samples, o.prompt+o.tokens-1
	if why := student.InStep(seqLen); why != "" {
		return fmt.Errorf("a student with %s writes no texts in lock-step", why)
	}
	w, err := o.newWriter(dev, s, student, rows, seqLen)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.free()) }()
	tr := distill.NewTrainer(student, s, rows, seqLen)
	defer tr.Free()
	tr.Teacher = &teacher.Resident{Model: big, Group: teacher.GroupRows(dev.Info(), seqLen)}
	tr.Loss.Spec = device.LossSpec{Alpha: 1, Temperature: 1, Divergence: device.ReverseKL}
	tr.Loss.Vocab, tr.Loss.ChunkRows, tr.MicroRows = o.vocab, o.chunk, o.micro
	tr.Optimizer = optim.Optimizer{
		Schedule: optim.Schedule{Kind: optim.Constant, Peak: 1e-6, Steps: o.rounds + 1},
		AdamW:    device.AdamW{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1}, MaxNorm: 1,
	}
	r := result{Device: dev.Info().Name, Shape: o.shape, Teacher: o.teacher, Lag: o.lag, Graphs: o.graphs, Texts: rows,
		Prompt: o.prompt, Tokens: o.tokens, Load: load}
	drawn := float64(rows * o.tokens)
	for step := range o.rounds + 1 {
		one, err := o.step(ctx, w, tr, step)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "lag %s, step %d: sampling %.2f s (%.0f tokens/s), scoring and training %.2f s, "+
			"%.2f s and %.0f tokens/s in all\n", o.lag, step, one.Sampling, drawn/one.Sampling, one.Training, one.Seconds,
			drawn/one.Seconds)
		if step == 0 {
			r.First = one
			continue
		}
		r.Rounds = append(r.Rounds, one)
		r.Sampled = max(r.Sampled, drawn/one.Sampling)
		r.PerSecond = max(r.PerSecond, drawn/one.Seconds)
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
