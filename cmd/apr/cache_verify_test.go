package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"apr/internal/cli"
	"apr/internal/contracttest"
)

// TestCacheVerifyHints: every flag that a hint of cache verify names is its own, or is answered with why it is not
// needed.
func TestCacheVerifyHints(t *testing.T) {
	said := func(args ...string) string {
		t.Helper()
		contracttest.Cases(t, 1)
		var out, log bytes.Buffer
		args = append([]string{"cache", "verify", "CACHE", "TEACHER"}, args...)
		if code := run(args, strings.NewReader(""), &out, &log, nil); code != 2 {
			t.Fatalf("%q: exit %d: %s", args, code, log.String())
		}
		return log.String()
	}
	own := names((&cacheVerifyOptions{distillOptions: &distillOptions{}}).table())
	named := regexp.MustCompile(`--([a-z][a-z-]+)`).FindAllStringSubmatch(said(), -1)
	if len(named) < 6 {
		t.Errorf("the hint names %q", named)
	}
	for _, m := range named {
		if !slices.Contains(own, m[1]) && cacheAdvice[m[1]] == "" {
			t.Errorf("the hint names --%s, which is unknown", m[1])
		}
	}
	precompute := names((&distillOptions{}).table())
	for name, why := range cacheAdvice {
		if slices.Contains(own, name) || !slices.Contains(precompute, strings.TrimPrefix(name, "no-")) {
			t.Errorf("--%s is its own, or nobody's", name)
		}
		if log := said("--" + name); !strings.Contains(log, why) {
			t.Errorf("--%s: %s", name, log)
		}
	}
}

// names returns the names of options.
func names(all []cli.Option) (out []string) {
	for _, o := range all {
		out = append(out, o.Name)
	}
	return out
}
