package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"apr/bench/trial"
)

// files are what a variant begins with, beside teacher and data.
type files struct {
	config         string // config.json of a new student
	start          string // model that the student begins with
	tools, library string // teachers that were trained further on the tools and the library of Go
	routed         string // the data with the field source
	seconds        float64
}

// workshop makes files that several runs share, each once.
type workshop struct {
	*options
	into *trial.Log[settings, record]
	mu   sync.Mutex
	made map[string]*piece
}

type piece struct {
	once    sync.Once
	path    string
	seconds float64
	err     error
}

// make returns the path of a file of the work folder, and the seconds that making it took. One that exists is not
// made again.
func (w *workshop) make(name string, how func(path string) error) (string, float64, error) {
	w.mu.Lock()
	p := w.made[name]
	if p == nil {
		p = &piece{path: filepath.Join(w.work, name)}
		w.made[name] = p
	}
	w.mu.Unlock()
	p.once.Do(func() { p.seconds, p.err = w.build(p.path, how) })
	return p.path, p.seconds, p.err
}

// build makes a file under another name with the same ending first, so that half of one is never found. Beside it
// lies how long it took.
func (w *workshop) build(path string, how func(path string) error) (float64, error) {
	note := path + ".seconds"
	if text, err := os.ReadFile(note); err == nil {
		return strconv.ParseFloat(string(text), 64)
	}
	temp := filepath.Join(filepath.Dir(path), "making-"+filepath.Base(path))
	for _, old := range []string{temp, path} {
		if err := os.RemoveAll(old); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	if err := how(temp); err != nil {
		return 0, err
	}
	seconds := time.Since(start).Seconds()
	if err := os.Rename(temp, path); err != nil {
		return 0, err
	}
	return seconds, os.WriteFile(note, []byte(number(seconds)), 0o644)
}

// apr runs the program.
func (w *workshop) apr(ctx context.Context, result any, args ...string) error {
	return trial.Run(ctx, trial.Share(w.Jobs), result, w.options.apr, args...)
}

// shape is what is read of the teacher's config.json.
type shape struct {
	Layers int `json:"num_hidden_layers"`
	Hidden int `json:"hidden_size"`
	Heads  int `json:"num_attention_heads"`
}

// teacherConfig returns the teacher's config.json.
func (w *workshop) teacherConfig(ctx context.Context) (string, shape, error) {
	var s shape
	dir, _, err := w.make("teacher", func(path string) error {
		return w.apr(ctx, nil, "export", w.teacher, "--format", "hf", "-o", path, "--force")
	})
	if err != nil {
		return "", s, err
	}
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && !(s.Layers > 1 && s.Hidden > 0 && s.Heads > 0) {
		err = fmt.Errorf("%s: a teacher with %d layers, width %d, %d heads cannot be cut", path, s.Layers, s.Hidden, s.Heads)
	}
	return path, s, err
}

// layers is how many layers the student has.
func (w *workshop) layers(s shape) int {
	if w.Layers > 0 {
		return w.Layers
	}
	return s.Layers / 2
}

// randomConfig writes the config.json of a new student with the sizes of the pruned one. Its weights are drawn as
// docs/guide/student.md advises for narrow models, not as the teacher's config says.
func (w *workshop) randomConfig(ctx context.Context) (string, error) {
	from, s, err := w.teacherConfig(ctx)
	if err != nil {
		return "", err
	}
	path, _, err := w.make("student-config.json", func(path string) error {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		out, err := cutConfig(text, s, w.layers(s), w.Hidden)
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		return os.WriteFile(path, out, 0o644)
	})
	return path, err
}

// cutConfig returns a config.json with fewer layers and, unless hidden is 0, another width of the residual stream.
func cutConfig(text []byte, s shape, layers, hidden int) ([]byte, error) {
	var c map[string]any
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	c["num_hidden_layers"] = layers
	if list, ok := c["layer_types"].([]any); ok {
		if len(list) < layers {
			return nil, fmt.Errorf("layer_types has %d entries for %d layers", len(list), layers)
		}
		c["layer_types"] = list[:layers]
	}
	if hidden > 0 {
		c["hidden_size"] = hidden
		if _, ok := c["head_dim"]; !ok {
			c["head_dim"] = s.Hidden / s.Heads
		}
		s.Hidden = hidden
	}
	c["initializer_range"] = math.Round(6000/math.Sqrt(float64(s.Hidden))) / 1e4
	return json.MarshalIndent(c, "", "  ")
}

// cut prunes a model to n layers, and to the hidden width if it is not 0.
func (w *workshop) cut(ctx context.Context, model, out string, n, hidden int) error {
	args := []string{"prune", model, "-o", out, "-d", w.data, "--layers", strconv.Itoa(n), "--backend", w.Backend}
	if hidden > 0 {
		args = append(args, "--hidden", strconv.Itoa(hidden))
	}
	if w.Calibration > 0 {
		args = append(args, "--calibration-tokens", strconv.Itoa(w.Calibration))
	}
	return w.apr(ctx, nil, args...)
}

// sizes are keys of config.json that random and pruned starts share.
var sizes = []string{"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"}

// sameSizes returns an error if a model has other sizes than the new student.
func (w *workshop) sameSizes(ctx context.Context, model string) error {
	path, err := w.randomConfig(ctx)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c map[string]any
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var m struct {
		Config map[string]any `json:"config"`
	}
	if err := w.apr(ctx, &m, "inspect", model, "--json"); err != nil {
		return err
	}
	for _, key := range sizes {
		if m.Config[key] == nil || m.Config[key] != c[key] {
			return fmt.Errorf("%s: %s is %v, and %v in %s: the starts are not alike", model, key, m.Config[key], c[key], path)
		}
	}
	return nil
}

// pruned cuts the teacher at once.
func (w *workshop) pruned(ctx context.Context) (string, float64, error) {
	_, s, err := w.teacherConfig(ctx)
	if err != nil {
		return "", 0, err
	}
	return w.make("pruned.apr", func(path string) error {
		if err := w.cut(ctx, w.teacher, path, w.layers(s), w.Hidden); err != nil {
			return err
		}
		return w.sameSizes(ctx, path)
	})
}

// prepare makes the files of a variant. Starts in turns are made by each run.
func (w *workshop) prepare(ctx context.Context, v variant) (p files, err error) {
	switch v.start {
	case random:
		p.config, err = w.randomConfig(ctx)
	case pruned:
		p.start, p.seconds, err = w.pruned(ctx)
	case blocks:
		if p.start, p.seconds, err = w.pruned(ctx); err != nil {
			return p, err
		}
		from := p.start
		p.start, _, err = w.make("pruned-q4k.apr", func(path string) error {
			return w.apr(ctx, nil, "quantize", from, "-s", "q4k", "-o", path, "--force")
		})
	}
	if err == nil && v.teachers != "" {
		err = w.specialists(ctx, &p)
	}
	return p, err
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
