// Package selfcheck tries an installation on the user's own machine and device: ten stages from loading a model to the
// disk, each with the figure that it was judged by.
//
// What the device computes is compared with float64 (internal/ref), loops over the formulas that share no code with any
// device or with the model, and with answers that are known without a computer. The model is a tiny one that is made for
// the purpose, or, for the stages that concern a model, the user's.
//
// Caveats. A stage that needs float64 takes the tiny model in place of one of more than 20 million parameters, and says so.
// Tolerances depend on the type of the device's activations, not on what was seen: see tolerances.
package selfcheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"apr/arch"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tokenizer"
)

// Options say what is tried.
type Options struct {
	Device    device.Device
	Other     device.Device // another that must agree: the CPU beside a GPU, portable code beside vector code; nil: none
	OtherName string
	File      string // a model; empty: the tiny one
	Dir       string // an empty folder to work in
	Progress  func(stage string)
	Warn      func(line string) // takes what is doubtful about File and fails no stage; nil: nobody
}

// Stage is what came of one.
type Stage struct {
	Name     string  `json:"name"`
	OK       bool    `json:"ok"`
	MaxError float64 `json:"max_error"` // in the unit of its detail; at most Allowed
	Allowed  float64 `json:"allowed"`
	Detail   string  `json:"detail"`
	Hint     string  `json:"hint,omitempty"` // where to look when it failed
	Seconds  float64 `json:"seconds"`

	Unavailable bool `json:"-"` // the model has a feature that is not computed
}

// figure is what a stage measured.
type figure struct {
	worst, allowed float64
	detail         string
}

// tolerances are how far a device may be from float64, by the type of its activations.
type tolerances struct {
	logits   float64 // of logits, as logitError measures them
	near     float64 // how far below the largest logit a likeliest one may be, over the largest |logit|
	loss     float64 // relative
	gradient float64 // relative L2, of each tensor
	update   float64 // relative L2 of what a step adds to each tensor
}

func tolerancesOf(info device.Info) tolerances {
	if info.Activations.BlockBytes() == 4 {
		return tolerances{logits: 2e-4, near: 2e-4, loss: 1e-5, gradient: 1e-4, update: 2e-3}
	}
	return tolerances{logits: 5e-4, near: 3e-2, loss: 2e-2, gradient: 8e-2, update: 8e-2}
}

// check is a run of all stages.
type check struct {
	Options
	tol          tolerances
	s            device.Stream
	tinyT, tinyS *modelfile.Files // the tiny teacher and student
	f            *modelfile.Files // the user's, or the tiny teacher
	own          bool             // f is the user's
	m            *model.Model
}

// stages in order. A stage may use what an earlier one opened; when that failed, it fails too.
var stages = []struct {
	name, hint string
	run        func(*check, context.Context) (figure, error)
}{
	{"load", "the file is damaged or no model: apr validate FILE names the tensor", (*check).load},
	{"tokenise", "the model's tokenizer does not give texts back: apr tokenize inspect shows each token", (*check).tokenise},
	{"forward", "this device computes logits that differ from float64: try APR_CPU=generic, or --no-gpu", (*check).forward},
	{"gradient", "this device computes gradients that differ from float64: do not train with it; try APR_CPU=generic, or --no-gpu", (*check).gradient},
	{"loss", "the loss does not have the values that are known: do not train with this device", (*check).loss},
	{"step", "an optimiser step differs from float64: do not train with this device", (*check).step},
	{"checkpoint", "a run that is continued differs from one that was not stopped: --resume cannot be relied on", (*check).checkpoint},
	{"generation", "text generated with a key-value cache differs from that of whole forwards", (*check).generation},
	{"device parity", "two ways of computing disagree: the one that differs from float64 in the stage forward is wrong", (*check).parity},
	{"disk", "what is written there does not come back: use another disk, or make room", (*check).disk},
}

// Names returns the stages' names in order.
func Names() (names []string) {
	for _, s := range stages {
		names = append(names, s.name)
	}
	return names
}

// Run tries all stages; it goes on after one that failed. Its error is the context's.
func Run(ctx context.Context, o Options) ([]Stage, error) {
	c := &check{Options: o, tol: tolerancesOf(o.Device.Info()), s: o.Device.NewStream()}
	defer c.close()
	var out []Stage
	for _, s := range stages {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		if o.Progress != nil {
			o.Progress(s.name)
		}
		start := time.Now()
		f, err := c.guard(func() (figure, error) { return s.run(c, ctx) })
		st := Stage{Name: s.name, MaxError: f.worst, Allowed: f.allowed, Detail: f.detail, Seconds: time.Since(start).Seconds()}
		st.OK = err == nil && f.worst <= f.allowed // false for NaN
		if err != nil {
			st.Detail, st.MaxError, st.Unavailable = err.Error(), math.NaN(), fault.KindOf(err) == fault.Unavailable
		}
		if !st.OK {
			st.Hint = s.hint
		}
		out = append(out, st)
	}
	return out, ctx.Err()
}

// guard turns a panic into a stage that failed: a broken machine may break what the program believes.
func (c *check) guard(f func() (figure, error)) (fig figure, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

func (c *check) close() {
	for _, f := range []*modelfile.Files{c.tinyT, c.tinyS} {
		if f != nil {
			f.Close()
		}
	}
	if c.own {
		c.f.Close()
	}
}

// errNoModel says that an earlier stage has to succeed first.
var errNoModel = errors.New("there is no model: the stage load failed")

// load writes and reads the tiny models, and reads every tensor of the user's. The figure counts values that are not
// finite.
func (c *check) load(context.Context) (figure, error) {
	var err error
	if c.tinyT, c.tinyS, err = writeTiny(c.s, c.Device, c.Dir); err != nil {
		return figure{}, err
	}
	c.f = c.tinyT
	if c.File != "" {
		if c.f, err = modelfile.Open(c.File); err != nil {
			c.f = nil
			return figure{}, err
		}
		c.own = true
		if c.Warn != nil {
			for _, w := range c.f.Warnings {
				c.Warn(c.File + ": " + w)
			}
			c.f.Warn = c.Warn
		}
	}
	if err := c.f.CheckTensors(); err != nil {
		return figure{}, err
	}
	bad, tensors, values := 0, 0, int64(0)
	for name := range arch.Shapes(c.f.Config) {
		v, err := c.f.ReadFloat32(name)
		if err != nil {
			return figure{}, err
		}
		for _, x := range v {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				bad++
			}
		}
		tensors, values = tensors+1, values+int64(len(v))
	}
	if tensors == 0 || values == 0 {
		return figure{}, errors.New("no tensor was read")
	}
	if c.m, err = model.LoadFrozen(c.Device, c.f, device.StudentWeights); err != nil {
		return figure{}, err
	}
	what := "the tiny model"
	if c.own {
		what = c.File
	}
	return figure{float64(bad), 0, fmt.Sprintf("%s: %d tensors, %d values, those not finite counted", what, tensors, values)}, nil
}

// texts are what tokenizers get wrong.
var texts = []string{
	"package main\n\nfunc main() {\n\tfmt.Println(\"hello, world\")\n}\n", "  two  blanks\t\ttabs\r\n\n\n", "Ärger, naïve, Ωμέγα, 汉字, 🙂👩‍👩‍👧",
	"1234567890 3.14e-10 0x7fffffff", "don't we'll I'M", "<|endoftext|> is text here", "\x00\x01\x7f", "a",
}

// tokenise encodes and decodes texts; the figure counts those that do not come back.
func (c *check) tokenise(context.Context) (figure, error) {
	if c.f == nil {
		return figure{}, errNoModel
	}
	tok, err := c.f.Tokenizer()
	if err != nil {
		return figure{}, err
	}
	lost, tokens := 0, 0
	for _, text := range texts {
		ids := tok.Encode(text, tokenizer.PlainText)
		back, err := tok.Decode(ids)
		if err != nil || back != text {
			lost++
		}
		tokens += len(ids)
	}
	return figure{float64(lost), 0, fmt.Sprintf("%d texts of %d tokens, those that do not come back counted", len(texts), tokens)}, nil
}

// disk writes, syncs and reads back 8 MiB; the figure counts bytes that differ.
func (c *check) disk(context.Context) (figure, error) {
	path := filepath.Join(c.Dir, "disk")
	want := make([]byte, 8<<20)
	x := uint64(88172645463325252)
	for i := range want { // xorshift64: Marsaglia 2003
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		want[i] = byte(x)
	}
	start := time.Now()
	if err := writeSynced(path, want); err != nil {
		return figure{}, fault.In(fault.IO, c.Dir, "cannot be written").Because(err)
	}
	took := time.Since(start)
	got, err := os.ReadFile(path)
	if err != nil {
		return figure{}, fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	different := max(len(got), len(want)) - min(len(got), len(want))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			different++
		}
	}
	return figure{float64(different), 0, fmt.Sprintf("%d bytes written and synced in %v, those that differ counted", len(want), took.Round(time.Millisecond))}, os.Remove(path)
}

func writeSynced(path string, data []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
