package distill

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	runlog "apr/run/log"
)

// TestTemplateTime: a chat template's date is that of the run's start, also when it goes on another day.
func TestTemplateTime(t *testing.T) {
	dir := t.TempDir()
	began := time.Date(2026, 7, 4, 9, 5, 7, 0, time.UTC)
	b, err := json.Marshal(runlog.Manifest{Schema: runlog.ManifestSchema, TemplateTime: &began})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	resumed := &inputs{}
	if got := resumed.templateTime(Config{Output: dir, Resume: ResumeAuto}); !got.Equal(began) {
		t.Errorf("resumed: %v, want %v", got, began)
	}
	anew := &inputs{}
	first := anew.templateTime(Config{Output: dir})
	if first.Equal(began) || time.Since(first) > time.Minute || !anew.templateTime(Config{Output: dir}).Equal(first) {
		t.Errorf("a new run: %v", first)
	}
	if m := anew.manifest(); m.TemplateTime != nil {
		t.Error("the manifest of a run whose template reads no time has one")
	}
	anew.dated = true
	if m := anew.manifest(); m.TemplateTime == nil || !m.TemplateTime.Equal(first) {
		t.Errorf("the manifest has %v, want %v", m.TemplateTime, first)
	}
}
