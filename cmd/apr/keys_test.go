package main

import (
	"os"
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// A key of config.json that is allowed to be unread may be allowed by a configuration file; the run writes down that it was, and verify
// allows it again.
func TestAllowedKeyIsRecorded(t *testing.T) {
	smallRun(t)
	edit(t, "teacher/config.json", "{", `{"zzzzzzzz_next": 64,`)
	settings := `{teacher: teacher, student_config: student.json, data: [train.jsonl], eval_data: [held.jsonl], steps: 2, batch_size: 2, seq_len: 16, backend: cpu, output: allowed%s}`
	for name, more := range map[string]string{"with.yaml": ", allow_config_key: [zzzzzzzz_next]", "without.yaml": ""} {
		if err := os.WriteFile(name, []byte(strings.Replace(settings, "%s", more, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, v := call(t, "distill", "without.yaml"); code == 0 || !strings.Contains(errorText(v), "zzzzzzzz_next") {
		t.Errorf("a key that nobody allowed: exit %d, %s", code, errorText(v))
	}
	must(t, "distill", "with.yaml")
	if text, err := os.ReadFile("allowed/manifest.json"); err != nil || !strings.Contains(string(text), `"allow_config_key"`) {
		t.Errorf("the manifest does not say what was allowed (%v)", err)
	}
	must(t, "verify", "allowed", "--steps", "1")
	must(t, "distill", "without.yaml", "--allow-config-key", "zzzzzzzz_next", "-o", "flag")
	must(t, "verify", "flag", "--steps", "1")
	var out strings.Builder
	if code := run([]string{"distill", "--config", "with.yaml", "--print-config"}, strings.NewReader(""), &out, &out, nil); code != 0 || !strings.Contains(out.String(), "allow_config_key: [zzzzzzzz_next]") {
		t.Errorf("exit %d: %s", code, out.String())
	}
	contracttest.Cases(t, 5)
}
