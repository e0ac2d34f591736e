package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/ref"
	"apr/modelfile"
	"apr/tensor"
)

// familyText is what the models of every family continue, learn and are scored on: longer than their windows.
const familyText = "In 1905 the three of them measured 12345.678 times, and again; it wasn't the same as before, they'd say."

// allCommands are the models that go through all commands: at least one of every family. Others of randmodel are
// converted and generate.
var allCommands = []string{
	"qwen2", "qwen3", "llama", "mistral_window", "ministral3", "smollm3", "phi3_short", "olmo2", "olmo3", "granite",
	"granite_nope", "gemma2", "gemma3", "gemma4", "gemma4_moe", "qwen3_moe", "qwen3_moe_mixed", "gpt_oss", "qwen3_5",
}

// familyCase is a random model with the files made of it, all in one folder.
type familyCase struct {
	t      *testing.T
	dir    string
	config arch.Config
}

func (c *familyCase) path(name string) string { return filepath.Join(c.dir, name) }

// apr runs a command, requires its exit code, and returns the object on its standard output.
func (c *familyCase) apr(code int, args ...string) map[string]any {
	c.t.Helper()
	var out, log bytes.Buffer
	environ := []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + c.dir, "XDG_CACHE_HOME=" + c.dir}
	got := run(append(args, "--no-progress", "--json"), strings.NewReader(""), &out, &log, environ)
	if got != code {
		c.t.Fatalf("apr %s: exit %d, want %d: %s", strings.Join(args, " "), got, code, log.String())
	}
	var v map[string]any
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		c.t.Fatalf("apr %s: %v: %s", strings.Join(args, " "), err, out.String())
	}
	return v
}

// at returns a member of an object; dots descend.
func (c *familyCase) at(v map[string]any, path string) any {
	c.t.Helper()
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		v, _ = v[key].(map[string]any)
	}
	x, ok := v[keys[len(keys)-1]]
	if !ok {
		c.t.Fatalf("no member %s", path)
	}
	return x
}

func (c *familyCase) number(v map[string]any, path string) float64 {
	c.t.Helper()
	x, ok := c.at(v, path).(float64)
	if !ok {
		c.t.Fatalf("%s is no number", path)
	}
	return x
}

// newFamilyCase writes a random model and its text.
func newFamilyCase(t *testing.T, m randmodel.Model) *familyCase {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &familyCase{t: t, dir: dir}
	var text string
	if text, c.config, err = m.Config(); err != nil {
		t.Fatal(err)
	}
	if err := m.Folder("../..", c.path("hf")); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, "{\"text\": %q}\n", fmt.Sprint(i, ". ", familyText))
	}
	for name, content := range map[string]string{"text.jsonl": lines.String(), "student.json": text} {
		if err := os.WriteFile(c.path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Every family goes through the commands: models with random weights, whose every feature shows in their logits.
func TestFamiliesThroughCommands(t *testing.T) {
	visited := map[string]bool{}
	for _, m := range randmodel.Models {
		if m.Deep {
			continue
		}
		_, config, err := m.Config()
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Contains(allCommands, m.Name)
		visited[config.Family] = visited[config.Family] || all
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			contracttest.Cases(t, 1)
			c := newFamilyCase(t, m)
			c.lookedInto()
			c.converted()
			c.quantised()
			c.generates()
			if all {
				c.scored()
				c.distilled()
				c.timed()
			}
		})
	}
	for _, f := range arch.Families() {
		if !visited[f] {
			t.Errorf("no model of family %s", f)
		}
	}
}

// lookedInto inspects, lists and validates.
func (c *familyCase) lookedInto() {
	c.t.Helper()
	v := c.apr(0, "inspect", c.path("hf"))
	if got := c.at(v, "architecture"); got != c.config.Family {
		c.t.Errorf("inspect: %v, want %s", got, c.config.Family)
	}
	want := 0.0
	for _, s := range arch.Slots(c.config) {
		want += float64(s.Elements())
	}
	if got := c.number(v, "param_count"); got != want {
		c.t.Errorf("inspect: %v parameters, want %v", got, want)
	}
	if got := len(c.at(c.apr(0, "tensors", c.path("hf")), "tensors").([]any)); got != int(c.number(v, "tensor_count")) || got == 0 {
		c.t.Errorf("tensors: %d, inspect says %v", got, c.at(v, "tensor_count"))
	}
	c.apr(0, "validate", c.path("hf"), "--strict")
}

// values returns a model's slots.
func (c *familyCase) values(name string) map[string][]float32 {
	c.t.Helper()
	f, err := modelfile.Open(c.path(name))
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	for _, d := range arch.Compare(c.config, f.Config) {
		a, isA := d.A.(float64)
		b, isB := d.B.(float64)
		if d.Path == "pad" || d.Path == "family" || strings.HasSuffix(d.Path, ".mscale") || isA && isB && math.Abs(a-b) <= 1e-7*math.Abs(a) {
			continue // GGUF has a pad where the tokenizer does, one name for Llama and Mistral, what mscale makes, and float32
		}
		c.t.Errorf("%s: %s is %v, want %v", name, d.Path, d.B, d.A)
	}
	out := map[string][]float32{}
	for _, s := range arch.Slots(c.config) {
		if out[s.Name], err = f.ReadFloat32(s.Name); err != nil {
			c.t.Fatal(err)
		}
	}
	return out
}

// converted goes to each other format and back to a folder. Values are the same bits, but those that GGUF keeps as
// another number (w+1, −exp): they may be off by a rounding.
func (c *familyCase) converted() {
	c.t.Helper()
	want := c.values("hf")
	for _, name := range []string{"m.apr", "m.gguf", "m.safetensors"} {
		c.apr(0, "convert", c.path("hf"), "-o", c.path(name))
		c.apr(0, "validate", c.path(name))
		c.apr(0, "convert", c.path(name), "-o", c.path("back-"+filepath.Ext(name)[1:]))
		for _, n := range []string{name, "back-" + filepath.Ext(name)[1:]} {
			got := c.values(n)
			for _, s := range arch.Slots(c.config) {
				allowed := 0.0
				if name == "m.gguf" && s.GGUF.Values != s.HF.Values {
					allowed = 1e-6
				}
				if d := furthest(got[s.Name], want[s.Name]); !(d <= allowed) {
					c.t.Errorf("%s: %s is off by %g", n, s.Name, d)
				}
			}
		}
	}
}

// furthest returns the largest difference of two slices, 0 only for equal bits, NaN for other lengths.
func furthest(a, b []float32) (d float64) {
	if len(a) != len(b) {
		return math.NaN()
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			d = math.Max(d, math.Max(math.Abs(float64(a[i])-float64(b[i])), math.SmallestNonzeroFloat64))
		}
	}
	return d
}

// keepsBlocks reports whether the blocks of a GGUF file's tensor hold the columns of the model's: those of Qwen3.5's ssm_out that
// are longer than its runs of columns become float32 on their way.
func (c *familyCase) keepsBlocks(x tensor.Stored) bool {
	for _, s := range arch.Slots(c.config) {
		if s.GGUF.Name == x.Name {
			return s.GGUF.Cols == (arch.Order{}) || s.GGUF.Cols.Width%x.DType.BlockLen() == 0
		}
	}
	return true
}

// quantised makes files of blocks, and requires the same bytes of them in another GGUF file after .apr.
func (c *familyCase) quantised() {
	c.t.Helper()
	for _, scheme := range []string{"q8_0", "q4_k_m"} {
		file, between, back := c.path(scheme+".gguf"), c.path(scheme+".apr"), c.path(scheme+"-back.gguf")
		c.apr(0, "quantize", c.path("hf"), "-s", scheme, "--format", "gguf", "-o", file)
		c.apr(0, "convert", file, "-o", between)
		c.apr(0, "convert", between, "-o", back)
		a, err := gguf.Open(file)
		if err != nil {
			c.t.Fatal(err)
		}
		b, err := gguf.Open(back)
		if err != nil {
			c.t.Fatal(err)
		}
		blocks, moved := 0, 0
		for _, x := range a.Tensors() {
			y, ok := b.Tensor(x.Name)
			want, kept := content(c.t, x), x.DType
			if !c.keepsBlocks(x) {
				want, kept = asFloats(c.t, x.DType, want), tensor.F32
			}
			if kept != x.DType {
				moved++
			}
			if !ok || y.DType != kept || !bytes.Equal(want, content(c.t, y)) {
				c.t.Errorf("%s: %s, %s, is another after .apr, %s", scheme, x.Name, x.DType, y.DType)
			}
			if x.DType.IsQuantized() {
				blocks++
			}
		}
		if blocks < 4 {
			c.t.Errorf("%s: %d tensors in blocks", scheme, blocks)
		}
		if got := c.number(c.apr(0, "diff", file, back), "retyped"); got != float64(moved) {
			c.t.Errorf("%s: diff after .apr says that %v tensors have another type, want %d", scheme, got, moved)
		}
		if moved > 0 {
			c.encodedAgain(scheme, moved)
		}
		a.Close()
		b.Close()
	}
}

// encodedAgain requires that blocks whose columns move are warned of on the way from .apr to GGUF.
func (c *familyCase) encodedAgain(scheme string, n int) {
	c.t.Helper()
	c.apr(0, "quantize", c.path("hf"), "-s", scheme, "-o", c.path("own.apr"))
	for _, command := range []string{"convert", "export"} {
		v := c.apr(0, command, c.path("own.apr"), "-o", c.path(command+".gguf"))
		if said := fmt.Sprint(c.at(v, "warnings")); !strings.Contains(said, fmt.Sprintf("%d tensors are encoded again", n)) {
			c.t.Errorf("%s: %s", command, said)
		}
	}
}

// generates compares a greedy text with the choices of float64 at each of its positions, which are beyond the window.
func (c *familyCase) generates() {
	c.t.Helper()
	v := c.apr(0, "run", c.path("m.gguf"), "-p", familyText[:60], "-n", "10", "--no-gpu")
	var made []int
	for _, id := range c.at(v, "tokens").([]any) {
		made = append(made, int(id.(float64)))
	}
	f, err := modelfile.Open(c.path("hf"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		c.t.Fatal(err)
	}
	ids := idsOf(tok, familyText[:60])
	if n := int(c.number(v, "prompt_tokens")); n != len(ids) || n <= 8 || len(made) == 0 {
		c.t.Fatalf("%d ids of the prompt and %d after it, want %d and some", n, len(made), len(ids))
	}
	net := &ref.Net{Arch: c.config, Params: map[string]ref.Mat{}}
	for name, v := range c.values("hf") {
		net.Params[name] = slotMatrix(c.config, name, v)
	}
	all := append(slices.Clone(ids), made...)
	best := ref.ArgMax(net.Forward(all[:len(all)-1], 1).Logits)
	if want := best[len(ids)-1:]; !slices.Equal(made, want) {
		c.t.Errorf("run: ids %v, float64 chooses %v", made, want)
	}
}

// scored compares the model and its copy in blocks with the model.
func (c *familyCase) scored() {
	c.t.Helper()
	for file, same := range map[string]bool{"m.apr": true, "q4_k_m.gguf": false} {
		v := c.apr(0, "eval", c.path(file), "--task", "agreement", "--teacher", c.path("hf"), "-d", c.path("text.jsonl"),
			"--seq-len", "32", "--max-tokens", "64", "--backend", "cpu")
		kl := c.number(v, "kl")
		if good := kl == 0 == same && kl >= 0 && !math.IsInf(kl, 0); !good {
			c.t.Errorf("eval of %s: KL is %v", file, kl)
		}
	}
}

// distilled distils a copy in blocks into a new student of the family and into the model itself, goes on from a
// checkpoint, verifies, and compares the plan with what the run needed.
func (c *familyCase) distilled() {
	c.t.Helper()
	step := []string{c.path("q4_k_m.gguf"), "-d", c.path("text.jsonl"), "--batch-size", "2", "--seq-len", "16",
		"--backend", "cpu", "--control", "none"}
	young := append(slices.Clone(step), "--student-config", c.path("student.json"), "--steps", "2")
	distill := append([]string{"distill"}, young...)
	distill = append(distill, "--eval-every", "0", "--checkpoint-every", "1", "--data-cache", "off")
	c.apr(0, append(distill, "-o", c.path("run"))...)
	resumed := slices.Clone(distill)
	if err := os.CopyFS(c.path("again"), os.DirFS(c.path("run"))); err != nil {
		c.t.Fatal(err)
	}
	if err := os.RemoveAll(c.path("again/checkpoints/step-000002")); err != nil {
		c.t.Fatal(err)
	}
	c.apr(0, append(resumed, "-o", c.path("again"), "--resume", c.path("again/checkpoints/step-000001"))...)
	if a, b := read(c.t, c.path("run/student.apr")), read(c.t, c.path("again/student.apr")); !bytes.Equal(a, b) {
		c.t.Error("distill: another student after --resume")
	}
	c.apr(0, "verify", c.path("run"), "--steps", "1")
	c.planned(c.apr(0, append([]string{"plan"}, young...)...))
	own := append([]string{"distill"}, step...) // the run above has shown what models of the family write
	c.apr(0, append(own, "--student", c.path("hf"), "--allow-same-model", "--steps", "1", "--eval-every", "0",
		"--samples", "0", "--data-cache", "off", "-o", c.path("own"))...)
	c.apr(0, "inspect", c.path("own/student"))
	if slices.ContainsFunc(c.config.Layers, func(l arch.Layer) bool { return l.FFN.MoE.Experts > 0 }) {
		c.balanced(young)
	}
}

// balanced trains with a load-balance loss: the plan says for which split of tokens it is, the record how held-out text is spread over
// experts, and verify that it cannot judge such steps.
func (c *familyCase) balanced(young []string) {
	c.t.Helper()
	args := append(slices.Clone(young), "--router-balance", "0.5")
	if s, _ := c.at(c.apr(0, append([]string{"plan"}, args...)...), "experts").(string); !strings.Contains(s, "planned for all 32 tokens") {
		c.t.Errorf("plan: experts %q", s)
	}
	args = append(args, "--val-fraction", "0.3", "--samples", "0", "--data-cache", "off", "-o", c.path("balanced"))
	c.apr(0, append([]string{"distill"}, args...)...)
	if bytes.Equal(read(c.t, c.path("balanced/student.apr")), read(c.t, c.path("run/student.apr"))) {
		c.t.Error("a load-balance loss changes nothing")
	}
	if events := string(read(c.t, c.path("balanced/events.jsonl"))); !strings.Contains(events, `"expert use"`) || !strings.Contains(events, `"unused"`) {
		c.t.Error("the record does not say how experts are used")
	}
	for format, want := range map[string]string{"html": "Use of experts", "md": "| experts of |"} {
		file := c.path("report." + format)
		c.apr(0, "runs", "report", c.path("balanced"), "--format", format, "-o", file)
		if !strings.Contains(string(read(c.t, file)), want) {
			c.t.Errorf("%s: nothing on the use of experts", file)
		}
	}
	c.apr(int(fault.Unavailable), "verify", c.path("balanced"))
}

// planned compares a plan with the memory that the run's first step recorded: what stays from step to step.
func (c *familyCase) planned(plan map[string]any) {
	c.t.Helper()
	first, _, _ := strings.Cut(string(read(c.t, c.path("run/steps.jsonl"))), "\n")
	var line map[string]any
	if err := json.Unmarshal([]byte(first), &line); err != nil {
		c.t.Fatal(err)
	}
	want := c.number(plan, "memory.total") - c.number(plan, "memory.arena")
	if got := c.number(line, "memory"); got != want {
		c.t.Errorf("the first step holds %v bytes, planned are %v", got, want)
	}
}

// timed runs the benchmarks, and the check of the installation with this model.
func (c *familyCase) timed() {
	c.t.Helper()
	c.apr(0, "bench", c.path("q4_k_m.gguf"), "-n", "4", "--iterations", "1", "--warmup", "0", "--backend", "cpu")
	step := c.apr(0, "bench", c.path("student.json"), "--kd", c.path("q4_k_m.gguf"), "--iterations", "1", "--warmup", "0", "--batch-size", "2", "--seq-len", "16", "--floor", "0.01", "--backend", "cpu")
	if !(c.number(step, "floor_ms") > 0) {
		c.t.Error("the step's products did not run alone")
	}
	c.apr(0, "check", c.path("hf"), "--no-gpu")
}
