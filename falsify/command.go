package falsify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tempWord stands in a command for a folder that is empty before it and gone after it.
const tempWord = "$TMP"

// command runs the program bin as a check says, and compares its exit code and its JSON.
func (g *gotool) command(ctx context.Context, bin string, c *Check, least uint64, limit time.Duration) (verdict, error) {
	dir, err := os.MkdirTemp(g.temp, "check-*")
	if err != nil {
		return verdict{}, err
	}
	defer os.RemoveAll(dir)
	var args []string
	for _, a := range c.Cmd[1:] {
		args = append(args, strings.ReplaceAll(a, tempWord, dir))
	}
	if len(c.JSON) > 0 && !slices.Contains(args, "--json") {
		args = append(args, "--json")
	}
	start := time.Now()
	stdout, stderr, timedOut, err := g.run(ctx, limit, []string{"XDG_CACHE_HOME=" + dir}, bin, args...)
	if ctx.Err() != nil {
		return verdict{}, ctx.Err()
	}
	v := verdict{seconds: time.Since(start).Seconds(), tail: tail(append(bytes.Clone(stdout), stderr...))}
	code := 0
	var exit *exec.ExitError
	switch {
	case timedOut:
		v.result, v.observed = broken, "timed out"
		return v, nil
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		v.result, v.observed = broken, "could not be started"
		return v, nil
	}
	var wrong []string
	if c.Exit != nil {
		v.cases++
		if code != int(*c.Exit) {
			wrong = append(wrong, fmt.Sprintf("exit code %d, not %d", code, *c.Exit))
		}
	}
	n, differ := compareJSON(stdout, c.JSON)
	v.cases += n
	wrong = append(wrong, differ...)
	switch {
	case len(wrong) > 0:
		v.result, v.observed = failed, strings.Join(wrong, "; ")
	case v.cases < least:
		v.result, v.observed = vacuous, fmt.Sprintf("%d assertions, at least %d are due", v.cases, least)
	default:
		v.result, v.observed = passed, fmt.Sprintf("passed, %d assertions", v.cases)
	}
	return v, nil
}

// compareJSON compares members of the one JSON object in text, by dotted key, and returns how many it looked for and
// what is wrong.
func compareJSON(text []byte, want map[string]any) (n uint64, wrong []string) {
	if len(want) == 0 {
		return 0, nil
	}
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&object); err != nil || object == nil {
		return uint64(len(want)), []string{"stdout is not one JSON object"}
	}
	if _, err := d.Token(); err != io.EOF {
		return uint64(len(want)), []string{"stdout holds more than one JSON object"}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		n++
		got, ok := member(object, key)
		if !ok {
			wrong = append(wrong, "no member "+key)
		} else if !sameJSON(got, want[key]) {
			show, _ := json.Marshal(got) // it was JSON a moment ago
			wrong = append(wrong, fmt.Sprintf("%s is %s", key, clip(string(show))))
		}
	}
	return n, wrong
}

// member descends by a dotted key; a number is a place in an array.
func member(v any, key string) (any, bool) {
	for step := range strings.SplitSeq(key, ".") {
		switch x := v.(type) {
		case map[string]any:
			next, ok := x[step]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(x) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// sameJSON compares a decoded JSON value with one of YAML, as JSON.
func sameJSON(got, want any) bool {
	text, err := json.Marshal(want)
	if err != nil {
		return false
	}
	var w any
	return json.Unmarshal(text, &w) == nil && reflect.DeepEqual(got, w)
}
