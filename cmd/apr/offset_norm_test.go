package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/tokenizer"
)

// hiddenSize is the size of the hidden states in a configuration.
var hiddenSize = regexp.MustCompile(`"hidden_size": *[0-9]+`)

// A run of zeros in a norm that multiplies by w+1 is said, and a whole one, which a new model has, is not.
func TestHoleInOffsetNormIsSaid(t *testing.T) {
	root, err := filepath.Abs("../../testdata/golden/families")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(reference)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	const norm = "model.layers.1.input_layernorm.weight"
	for _, family := range []string{"gemma2", "gemma3_text", "qwen3_5_text"} {
		text := string(read(t, filepath.Join(root, family, "config.json")))
		wide := hiddenSize.ReplaceAllString(text, `"hidden_size": 128`) // norms of 256 bytes
		if err := os.WriteFile("config.json", []byte(wide), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, hole := range []struct {
			from, to int // bytes; 0, 0: all
			said     bool
		}{{64, 192, true}, {64, 128, false}, {0, 0, false}} {
			contracttest.Cases(t, 1)
			familyFolder(t, tok, "config.json", "holed")
			clearTensor(t, "holed", norm, hole.from, hole.to)
			for _, args := range [][]string{{"validate", "holed"}, {"import", "holed", "-o", "out.apr", "--force"}} {
				code, v := call(t, args...)
				said := fmt.Sprint(v["checks"], v["warnings"])
				if code != 0 || strings.Contains(said, fmt.Sprintf("%q: 128 bytes are zero", norm)) != hole.said ||
					strings.Contains(said, "are zero") != hole.said {
					t.Errorf("%s, %v: apr %v: exit %d: %v %s", family, hole, args, code, v["error"], said)
				}
			}
		}
	}
}
