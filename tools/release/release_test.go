package main

import (
	"regexp"
	"testing"
)

// Every row of the notices becomes a package whose identifier, licence and addresses have the form that SPDX demands.
func TestComponents(t *testing.T) {
	list, err := readNotices("../../THIRD_PARTY_NOTICES.md")
	if err != nil {
		t.Fatal(err)
	}
	seen, embedded := map[string]bool{}, 0
	for _, n := range list {
		c := n.component("1.26.0")
		if !regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`).MatchString(c.ID) || seen[c.ID] {
			t.Errorf("%s: identifier %q is wrong, or another's", n.name, c.ID)
		}
		seen[c.ID] = true
		if !regexp.MustCompile(`^[A-Za-z0-9.-]+( AND [A-Za-z0-9.-]+)*$`).MatchString(c.Declared) {
			t.Errorf("%s: licence %q", n.name, c.Declared)
		}
		if !regexp.MustCompile(`^pkg:(golang|npm)/[^ ]+@[^ ]+$`).MatchString(c.Refs[0].Locator) || regexp.MustCompile(`[A-Z]`).MatchString(c.Download) && c.Download != none {
			t.Errorf("%s: %s, %s", n.name, c.Refs[0].Locator, c.Download)
		}
		if n.embedded() {
			embedded++
		}
	}
	if len(list) < 20 || embedded != 2 {
		t.Errorf("%d rows, %d of them embedded; want Go and uPlot", len(list), embedded)
	}
}

func TestVersion(t *testing.T) {
	v, err := versionOf("../../cmd/apr/version.go")
	if err != nil || !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(v) {
		t.Errorf("%q, %v", v, err)
	}
}

func TestEscaped(t *testing.T) {
	if got := escaped("github.com/VividCortex/ewma"); got != "github.com/!vivid!cortex/ewma" {
		t.Error(got)
	}
}
