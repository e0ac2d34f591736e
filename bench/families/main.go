// Command families measures every family that the program knows, and writes the table of docs/models.md:
//
//	go run ./bench/families [-docs FILE] [-emulated FILE] [-card FILE] [-interop FILE]
//
// It runs in the root of the module, on the CPU. What is measured elsewhere comes from files: -emulated and -card are JSON that
// TestDevice of this package writes (with -tags emulate or gpu), -interop is the output of bench/interop -families. A cell
// without a measurement is UNAVAILABLE, and the headline counts such cells.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"apr/bench/randmodel"
	"apr/device"
	"apr/device/cpu"
)

// measured is what TestDevice writes.
type measured struct {
	Device   string    `json:"device"`
	Date     string    `json:"date"`
	Float32  []figures `json:"float32"`
	BFloat16 []figures `json:"bfloat16"`
}

// options are the flags.
type options struct{ docs, emulated, card, llama string }

func main() {
	var o options
	flag.StringVar(&o.docs, "docs", "", "document whose table is rewritten; else it is printed")
	flag.StringVar(&o.emulated, "emulated", "", "figures of the emulated GPU")
	flag.StringVar(&o.card, "card", "", "figures of a GPU")
	flag.StringVar(&o.llama, "interop", "", "table of bench/interop -families")
	flag.Parse()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "families:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	emulated, err := readMeasured(o.emulated)
	if err != nil {
		return err
	}
	card, err := readMeasured(o.card)
	if err != nil {
		return err
	}
	theirs, err := readLlama(o.llama)
	if err != nil {
		return err
	}
	list, err := onThisMachine(ctx)
	if err != nil {
		return err
	}
	for _, r := range list {
		logs := llamaCell(theirs, r.randoms)
		exact, rounded := onDevice(of(emulated.Float32, r.family), of(emulated.BFloat16, r.family))
		cardExact, cardRounded := onDevice(of(card.Float32, r.family), of(card.BFloat16, r.family))
		speed := r.cells[len(r.cells)-1]
		r.cells = append(r.cells[:len(r.cells)-1], logs, exact, rounded, cardExact, cardRounded, speed)
	}
	origin := fmt.Sprintf("Measured on %s with %s, %s/%s%s%s%s.", time.Now().UTC().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		load(), emulated.origin("emulated"), card.origin("GPU"))
	var text strings.Builder
	writeTable(&text, list, origin)
	if o.docs == "" {
		_, err := os.Stdout.WriteString(text.String())
		return err
	}
	return replace(o.docs, text.String())
}

// load says what else the machine had to do, which speeds depend on.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return fmt.Sprintf(", %d processors with a load of %s", runtime.NumCPU(), first)
}

// origin says where figures are from.
func (m measured) origin(what string) string {
	if m.Device == "" {
		return ""
	}
	return fmt.Sprintf("; %s: %s, %s", what, m.Device, m.Date)
}

// readMeasured reads a device's figures; without a file there are none.
func readMeasured(path string) (m measured, err error) {
	if path == "" {
		return m, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

// onThisMachine measures what the CPU can: the first cells of each row, and the speed.
func onThisMachine(ctx context.Context) ([]*row, error) {
	all, err := goldens(".")
	if err != nil {
		return nil, err
	}
	var here []figures
	for _, g := range all {
		d, err := openCPU()
		if err != nil {
			return nil, err
		}
		here = append(here, measure(d, g))
		if err := d.Close(); err != nil {
			return nil, err
		}
	}
	list, err := rows(here)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "families")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, r := range list {
		fmt.Fprintln(os.Stderr, "families:", r.family)
		if err := r.measure(ctx, dir); err != nil {
			return nil, fmt.Errorf("%s: %w", r.family, err)
		}
	}
	return list, nil
}

func openCPU() (device.Device, error) { return cpu.New(cpu.Options{}) }

// measure fills the cells that this machine can.
func (r *row) measure(ctx context.Context, dir string) error {
	logits, gradient, greedy := r.onCPU()
	d, err := openCPU()
	if err != nil {
		return err
	}
	defer d.Close()
	worst := 0.0
	for _, m := range randmodel.Models {
		if !slices.Contains(r.randoms, m.Name) {
			continue
		}
		far, err := throughGGUF(ctx, d, m, ".", dir)
		if err != nil {
			return err
		}
		worst = math.Max(worst, far)
	}
	relative := unavailable
	if r.config.NotComputed() == "" {
		x, err := speed(openCPU, r.config)
		if err != nil {
			return err
		}
		relative = fmt.Sprintf("%.2f", x)
	}
	r.cells = []string{"`" + r.family + "`", kind(r.config), names(r.goldens), logits, gradient, greedy, strings.Join(r.randoms, ", "), gguf(worst), relative}
	return nil
}

// gguf says whether logits are equal.
func gguf(worst float64) string {
	if worst == 0 {
		return "equal"
	}
	return fmt.Sprintf("%.1e", worst)
}

// readLlama reads the cells of log-probabilities by the names of random models.
func readLlama(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	cells, column := map[string]string{}, -1
	for line := range strings.Lines(string(text)) {
		c := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range c {
			c[i] = strings.TrimSpace(c[i])
		}
		if i := slices.Index(c, "log-probabilities"); i >= 0 || !strings.HasPrefix(line, "|") {
			column = i // −1 after the table
		} else if column >= 0 && column < len(c) && !strings.HasPrefix(c[0], "---") && c[column] != "" {
			cells[c[0]] = c[column]
		}
	}
	if len(cells) == 0 {
		return nil, fmt.Errorf("%s: no table with a column log-probabilities", path)
	}
	return cells, nil
}

// llamaCell is the largest difference of the random models of a family; those that llama.cpp is known to compute otherwise come
// apart, by name.
func llamaCell(cells map[string]string, models []string) string {
	var apart []string
	worst := -1.0
	for _, name := range models {
		text, ok := cells[name]
		if !ok {
			continue
		}
		var x float64
		_, err := fmt.Sscanf(text, "%g", &x)
		otherwise := slices.ContainsFunc(randmodel.Models, func(m randmodel.Model) bool { return m.Name == name && m.Differs != "" })
		if err != nil || otherwise {
			apart = append(apart, name+": "+text)
			continue
		}
		worst = math.Max(worst, x)
	}
	if worst >= 0 {
		apart = append([]string{fmt.Sprintf("%.1e", worst)}, apart...)
	}
	if apart == nil {
		return unavailable
	}
	return strings.Join(apart, "; ")
}

// The marks of the table in the document.
const begin, end = "<!-- families begin -->", "<!-- families end -->"

// replace puts the table between the marks of a document.
func replace(path, table string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s: no marks %s and %s", path, begin, end)
	}
	return os.WriteFile(path, []byte(head+begin+"\n\n"+table+"\n"+end+tail), 0o644)
}
