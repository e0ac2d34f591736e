package main

import (
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	runlog "apr/run/log"
)

// A student whose tokenizer writes conversations otherwise than the teacher's is told by plan and distill, with the side that the run uses; the
// manifest holds both.
func TestConventionsAreTold(t *testing.T) {
	inModelFolder(t)
	rewritten(t, "student", func(*arch.Config) {}, func(name string, v []float32) {
		if strings.HasSuffix(name, "mlp.up_proj.weight") {
			for i := range v {
				v[i] = -3 * v[i]
			}
		}
	})
	edit(t, "student/tokenizer_config.json", `"chat_template": "`, `"chat_template": "-`)
	stderr := func(args ...string) string {
		var out, errs strings.Builder
		if code := run(args, strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()}); code != 0 {
			t.Fatalf("apr %v: exit %d: %s", args, code, errs.String())
		}
		return errs.String()
	}
	for _, args := range [][]string{
		{"plan", "teacher", "--student", "student", "-d", "data.jsonl.zst", "--batch-size", "1", "--seq-len", "16", "--backend", "cpu", "--steps", "1", "--no-probe"},
		distilArgs("distill", "teacher", "student", "--steps", "1", "-o", "run"),
	} {
		contracttest.Cases(t, 1)
		text := stderr(args...)
		if !strings.Contains(text, "teacher and student differ in chat_template: one of ") ||
			!strings.Contains(text, " of the student; the run uses the student's") {
			t.Errorf("apr %s:\n%s", args[0], text)
		}
	}
	r, err := runlog.Read("run")
	if err != nil {
		t.Fatal(err)
	}
	if k := r.Manifest.Conventions; len(k) != 1 || k[0].Name != "chat_template" || k[0].Used != "student" || k[0].Teacher == k[0].Student {
		t.Errorf("manifest: %+v", k)
	}
	if !slices.ContainsFunc(r.Events, func(e runlog.Event) bool { return e.Kind == "warning" && e.Name == runlog.ConventionsDiffer }) {
		t.Error("no event says it")
	}
	must(t, "verify", "run", "--steps", "1")
	// A run whose manifest says otherwise is not as it was.
	replace(t, "run/manifest.json", `("name": "chat_template",\s*"teacher": "one of )`, "${1}1")
	reseal(t, "run")
	if code, v := call(t, "verify", "run", "--steps", "1"); code != 5 || !strings.Contains(errorText(v), "manifest.json: conventions") {
		t.Errorf("another convention: exit %d, %s", code, errorText(v))
	}
	contracttest.Cases(t, 2)
}
