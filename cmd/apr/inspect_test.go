package main

import (
	"maps"
	"testing"
)

func TestFlatten(t *testing.T) {
	got := flatten(map[string]any{
		"writer": "apr", "distillation": map[string]any{"alpha": 0.5, "data": map[string]any{"rows": 3}}, "empty": map[string]any{},
	})
	want := map[string]any{"writer": "apr", "distillation.alpha": 0.5, "distillation.data.rows": 3}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
