package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// check is a row of correctness.
type check struct {
	name                string
	measured, tolerance string
	failed              bool
	unavailable         bool // the machine lacks what the test needs: neither passed nor failed
}

// passed reports whether a row was checked and holds.
func (c check) passed() bool { return !c.failed && !c.unavailable }

var (
	ended  = regexp.MustCompile(`^( *)--- (PASS|FAIL|SKIP): (\S+)`)
	begun  = regexp.MustCompile(`^=== (?:RUN|CONT|NAME) +(\S+)`)
	rowOf  = regexp.MustCompile(`row ("(?:[^"\\]|\\.)*") measured (\S+) tolerance (\S+)$`)
	lacks  = regexp.MustCompile(`^ +\S+\.go:\d+: UNAVAILABLE: (.+)$`)
	allEnd = regexp.MustCompile(`(?m)^(PASS|FAIL)$`)
)

// readChecks reads the outputs of all test programs of a folder.
func readChecks(dir string) (all []check, err error) {
	names, err := files(dir, "*.txt")
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		if strings.HasPrefix(name, "torch-") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, parse(name, string(text))...)
	}
	return all, nil
}

// outcome is what is known of a test.
type outcome struct {
	rows   []check
	result string // PASS, FAIL, SKIP; empty: it has not ended
	lacks  string // what the machine lacks, by a line that begins with UNAVAILABLE
	inside int    // tests inside it
	absent int    // of those, the unavailable ones
}

// unavailable reports whether a test was skipped because the machine lacks what it needs, and says so.
func (o *outcome) unavailable() bool { return o.result == "SKIP" && o.lacks != "" }

// parse turns the output of a test program into rows: those that tests print, a row for every test without any, and one
// for the program if it did not come to its end. A test that is skipped because the machine lacks what it needs says
// "UNAVAILABLE: " and what; its row neither passes nor fails. Any other skipped test has checked nothing: it fails.
func parse(program, text string) (all []check) {
	tests, order := map[string]*outcome{}, []string{}
	at := func(name string) *outcome {
		if tests[name] == nil {
			tests[name] = &outcome{}
			order = append(order, name)
		}
		return tests[name]
	}
	now := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if m := begun.FindStringSubmatch(line); m != nil {
			now = m[1]
			at(now)
		} else if m := ended.FindStringSubmatch(line); m != nil {
			at(m[3]).result = m[2]
		} else if m := rowOf.FindStringSubmatch(line); m != nil && now != "" {
			at(now).rows = append(at(now).rows, check{name: strings.Trim(m[1], `"`), measured: m[2], tolerance: m[3]})
		} else if m := lacks.FindStringSubmatch(line); m != nil && now != "" {
			at(now).lacks = m[1]
		}
	}
	for _, name := range order {
		if top, _, inside := strings.Cut(name, "/"); inside {
			at(top).inside++
			if tests[name].unavailable() {
				at(top).absent++
			}
		}
	}
	for _, name := range order {
		all = append(all, tests[name].checks(program+" "+name)...)
	}
	if !allEnd.MatchString(text) {
		all = append(all, check{name: program + " (the program)", measured: "did not come to its end", failed: true})
	}
	return all
}

// checks are the rows of a test. One inside another has none if it passes and prints none: the outer one counts it. An
// outer one that passes has none if all tests inside it are unavailable: their rows say so.
func (o *outcome) checks(name string) []check {
	if o.unavailable() {
		return []check{{name: name, measured: o.lacks, unavailable: true}}
	}
	failed := o.result != "PASS"
	if !failed && o.inside > 0 && o.inside == o.absent && len(o.rows) == 0 {
		return nil
	}
	if len(o.rows) == 0 {
		c := check{name: name, failed: failed}
		switch inner := strings.ContainsRune(name, '/'); {
		case inner && !failed:
			return nil
		case o.result == "":
			c.measured = "has not ended"
		case o.result == "SKIP":
			c.measured = "skipped"
		case o.inside > 0:
			c.measured = fmt.Sprintf("%d tests", o.inside-o.absent)
		}
		return []check{c}
	}
	for i := range o.rows {
		o.rows[i].name = name + ": " + o.rows[i].name
		o.rows[i].failed = failed
	}
	return o.rows
}
