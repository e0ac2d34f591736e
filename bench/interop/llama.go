package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"apr/convert"
	"apr/corpus"
)

// peer is llama.cpp.
type peer struct {
	command string
	chunks  int
}

// run starts a program and returns what it printed.
func (p peer) run(ctx context.Context, args ...string) (stdout, all string, err error) {
	words := append(strings.Fields(p.command), args...)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var out, both strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &both
	if err := cmd.Run(); err != nil {
		return "", "", fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, both.String())
	}
	return out.String(), out.String() + both.String(), nil
}

// reference is the part of reference.json that is used: what transformers generates in float64.
type reference struct {
	Greedy []struct {
		Prompt string    `json:"prompt"`
		Text   string    `json:"text"`
		Margin []float64 `json:"top2_margin"`
	} `json:"greedy"`
}

// greedy lets llama.cpp continue the prompts of reference.json from an F32 file, and compares the text with ours and
// with that of transformers, which the tests of package generate require of ours.
func (p peer) greedy(ctx context.Context, folder, dir string) error {
	var ref reference
	data, err := os.ReadFile(filepath.Join(folder, "reference.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &ref); err != nil {
		return err
	}
	file, prompt := filepath.Join(dir, "f32.gguf"), filepath.Join(dir, "prompt")
	if err := write(ctx, folder, file, convert.Options{Scheme: convert.F32}); err != nil {
		return err
	}
	fmt.Fprint(os.Stdout, "\n| prompt | tokens | least margin of a choice | text of llama.cpp from our F32 GGUF |\n|---|---|---|---|\n")
	for _, g := range ref.Greedy {
		if err := os.WriteFile(prompt, []byte(g.Prompt), 0o600); err != nil {
			return err
		}
		// A few tokens more: it may end before it has printed the last one.
		text, _, err := p.run(ctx, "completion", "-m", file, "-bf", prompt, "--no-escape", "-n", strconv.Itoa(len(g.Margin)+4), "--temp", "0",
			"-no-cnv", "--no-display-prompt", "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off")
		if err != nil {
			return err
		}
		verdict := "equal"
		if !strings.HasPrefix(text, g.Text) {
			verdict = fmt.Sprintf("DIFFERS: %q, not %q", text, g.Text)
		}
		least := math.Inf(1)
		for _, m := range g.Margin {
			least = min(least, m)
		}
		fmt.Fprintf(os.Stdout, "| `%q` | %d | %.3f | %s |\n", g.Prompt, len(g.Margin), least, verdict)
	}
	return nil
}

// perplexity compares our mixes with those of llama.cpp's quantizer, both measured by llama.cpp.
func (p peer) perplexity(ctx context.Context, folder, texts, dir string) error {
	var all []string
	_, err := corpus.Read(ctx, []string{texts}, corpus.ReadOptions{}, func(d corpus.Document) error {
		all = append(all, d.Text)
		return nil
	})
	if err != nil {
		return err
	}
	val, full := filepath.Join(dir, "val.txt"), filepath.Join(dir, "f32.gguf")
	if err := os.WriteFile(val, []byte(strings.Join(all, "\n")), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "\n| types | our file | llama.cpp's quantizer | (perplexity by llama.cpp, %d windows of 512) |\n|---|---|---|---|\n", p.chunks)
	for _, s := range []struct {
		scheme convert.Scheme
		theirs string
	}{{convert.F32, ""}, {convert.F16, ""}, {convert.BF16, ""}, {convert.Q8_0, "Q8_0"}, {convert.Q6_K, "Q6_K"}, {convert.Q4_K_M, "Q4_K_M"}} {
		ours, theirs := filepath.Join(dir, "ours-"+string(s.scheme)+".gguf"), "–"
		if err := write(ctx, folder, ours, convert.Options{Scheme: s.scheme}); err != nil {
			return err
		}
		a, err := p.measure(ctx, ours, val)
		if err != nil {
			return err
		}
		if s.theirs != "" {
			file := filepath.Join(dir, "theirs.gguf")
			if _, _, err := p.run(ctx, "quantize", full, file, s.theirs, "1"); err != nil {
				return err
			}
			if theirs, err = p.measure(ctx, file, val); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stdout, "| %s | %s | %s | |\n", s.scheme, a, theirs)
	}
	return nil
}

// estimate is the mean after the last window, or the same in the summary.
func estimate(chunks int) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`(?:Final estimate: PPL = |\[%d\])([0-9.]+)`, chunks))
}

// measure returns llama.cpp's perplexity of a file. The program may end before its log is written: it gets five tries.
func (p peer) measure(ctx context.Context, file, text string) (string, error) {
	for range 5 {
		_, all, err := p.run(ctx, "perplexity", "-m", file, "-f", text, "-c", "512", "-b", "512", "-t", "1", "--chunks", strconv.Itoa(p.chunks))
		if err != nil {
			return "", err
		}
		if m := estimate(p.chunks).FindStringSubmatch(all); m != nil {
			return m[1], nil
		}
	}
	return "", fmt.Errorf("no perplexity in the output for %s", file)
}
