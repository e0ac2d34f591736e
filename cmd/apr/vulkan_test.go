//go:build vulkan

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"apr/corpus"
	"apr/device/cpu"
	"apr/device/vulkan"
	"apr/eval"
	"apr/generate"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
)

const software = "vulkan:llvmpipe" // an adapter that every machine can have

// TestVulkanExample: the example of the README at small steps has the CPU's losses within 10⁻⁴.
func TestVulkanExample(t *testing.T) {
	apr, dir := program(t), t.TempDir()
	heldOut := filepath.Join(dir, "held-out.jsonl")
	text := `{"text":"package main\n\nfunc main() {\n` + strings.Repeat(`\tprintln(1, 2, 3)\n`, 12) + `}\n"}`
	if err := os.WriteFile(heldOut, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	losses := func(backend string) (all []float64) {
		out := filepath.Join(dir, strings.ReplaceAll(backend, ":", "-"))
		c := exec.Command(apr, "distill", "../../examples/gosrc/distill.yaml", "-o", out, "--backend", backend,
			"--steps", "3", "--seq-len", "32",
			"--control", "none", "--samples", "0", "--eval-data", heldOut, "--warmup-steps", "1")
		c.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir)
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		f, err := os.Open(filepath.Join(out, "steps.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var step struct{ Loss float64 }
			if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
				t.Fatal(err)
			}
			all = append(all, step.Loss)
		}
		return all
	}
	want, got := losses("cpu"), losses(software)
	if len(want) != 3 {
		t.Fatalf("%d steps", len(want))
	}
	near.CheckRel(t, "losses", got, want, 1e-4)
}

// TestVulkanSignalThenResume: a run stops and goes on like any other, to the same bits.
func TestVulkanSignalThenResume(t *testing.T) {
	stopAndResume(t, []syscall.Signal{syscall.SIGINT}, "--backend", software, "--steps", "10", "--batch-size", "1",
		"--seq-len", "16")
}

// TestVulkanRefusals: what is not there is exit 9, with what was found.
func TestVulkanRefusals(t *testing.T) {
	apr := program(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"llvmpipe", []string{"--backend", "vulkan"}}, {"llvmpipe", []string{"--backend", "wgpu:nothing"}},
		{"--dtype bf16", []string{"--backend", software, "--dtype", "bf16"}},
	} {
		args := append([]string{"distill", "../../examples/gosrc/distill.yaml", "-o", filepath.Join(t.TempDir(),
			"run")}, c.args...)
		out, err := exec.Command(apr, args...).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 9 || !strings.Contains(string(out), c.want) {
			t.Errorf("%v: %v\n%s", c.args, err, out)
		}
	}
	out, err := exec.Command(apr, "doctor", "--json").Output()
	if err != nil || !strings.Contains(string(out), `"name":"llvmpipe`) || !strings.Contains(string(out),
		`"by_name":true`) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestVulkanNamedLoader: a loader that APR_VULKAN_LIB names and that cannot be used is exit 9 with its name, though the
// system has another one; auto goes on with the CPU and warns; doctor says so.
func TestVulkanNamedLoader(t *testing.T) {
	apr, dir := program(t), t.TempDir()
	notOne := filepath.Join(dir, "text")
	if err := os.WriteFile(notOne, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/nonexistent", notOne} {
		call := func(args ...string) (int, string) {
			c := exec.Command(apr, args...)
			c.Env = append(os.Environ(), "APR_VULKAN_LIB="+path, "CUDA_VISIBLE_DEVICES=-1")
			out, err := c.CombinedOutput()
			return code(err), string(out)
		}
		says := "the Vulkan loader that APR_VULKAN_LIB names cannot be used: " + path
		run := []string{"run", "../../testdata/models/gosrc", "func main", "--max-tokens", "2", "--backend"}
		for backend, exit := range map[string]int{software: 9, "auto": 0} {
			if got, text := call(append(run, backend)...); got != exit || !strings.Contains(text, says) {
				t.Errorf("%s, --backend %s: exit %d, want %d\n%s", path, backend, got, exit, text)
			}
		}
		got, text := call("doctor")
		if got != 0 || !strings.Contains(strings.Join(strings.Fields(text), " "), "vulkan: failed: "+says) {
			t.Errorf("%s, doctor: exit %d\n%s", path, got, text)
		}
	}
}

// TestVulkanGosrc: the five greedy continuations are the reference's, and the held-out nats of 2,048 targets those of
// the CPU within 10⁻⁵.
func TestVulkanGosrc(t *testing.T) {
	const dir = "../../testdata/models/gosrc"
	var ref struct {
		Greedy []struct {
			PromptIDs []int32 `json:"prompt_ids"`
			GreedyIDs []int32 `json:"greedy_ids"`
		}
	}
	b, err := os.ReadFile(dir + "/reference.json")
	if err == nil {
		err = json.Unmarshal(b, &ref)
	}
	if err != nil || len(ref.Greedy) != 5 {
		t.Fatalf("reference with %d continuations: %v", len(ref.Greedy), err)
	}
	f := modeltest.Open(t, dir)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	d, err := vulkan.Open(vulkan.Options{Adapter: "llvmpipe"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	host := modeltest.CPU(t, cpu.Options{})
	onCPU, m := modeltest.On(t, host, f), modeltest.On(t, d, f)
	for i, want := range ref.Greedy {
		got, err := generate.Generate(context.Background(), m, d.NewStream(), want.PromptIDs,
			generate.Options{MaxTokens: len(want.GreedyIDs), RepeatPenalty: 1, Vocab: tok.RealIDs()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.IDs, want.GreedyIDs) {
			t.Errorf("continuation %d: %v, want %v", i, got.IDs, want.GreedyIDs)
		}
	}
	text := modeltest.Text(t, f, "../../examples/gosrc/data/gosrc-val.jsonl.zst")
	text.IDs = text.IDs[:2049]
	w, err := corpus.NewWindows(text, 512, 512)
	if err != nil {
		t.Fatal(err)
	}
	var nats [2]float64
	for i, m := range []*model.Model{onCPU, m} {
		subject := []eval.Subject{{Name: "gosrc", Model: m}}
		scores, err := eval.Compare(context.Background(), m.Device().NewStream(), nil, subject, w,
			eval.Options{Vocab: tok.RealIDs()})
		if err != nil {
			t.Fatal(err)
		}
		nats[i] = scores[0].NatsPerToken()
	}
	t.Logf("%d targets: CPU %.7f, Vulkan %.7f nats a token", w.Len()*512, nats[0], nats[1])
	if difference := math.Abs(nats[1] - nats[0]); !(difference <= 1e-5) {
		t.Errorf("held-out nats differ by %g", difference)
	}
}
