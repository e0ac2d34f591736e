// Fuzz runs the tests of malformed files and the native fuzz targets of all readers, adds up their cases and
// executions, and fails on a crash, a failed test or too few executions. Run it in the root of the module:
//
//	go run ./tools/fuzz/main.go [-execs N | -fuzztime D] [-least N] [-docs FILE]
//
// With -docs the table replaces the text between the lines <!-- fuzz --> and <!-- end fuzz --> of the file.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// reader is one of the program's readers of files.
type reader struct {
	format, pkg string
	exact       string // tests with one malformed file and its exact text per case
	damage      string // test of prefixes and changed bytes
	targets     []target
}

// target is a fuzz target with its share of all executions, in thousandths: by its speed.
type target struct {
	name  string
	share int64
}

var readers = []reader{
	{"safetensors", "./format/safetensors", "TestRefused|TestIndex", "TestEveryPrefixAndFlip", []target{{"FuzzParse", 320}}},
	{"GGUF", "./format/gguf", "TestRefused", "TestEveryPrefixAndFlip", []target{{"FuzzParse", 330}}},
	{".apr", "./format/aprfile", "TestRefused|TestShardsThatContradict|TestPaddingAndDeviations", "TestEveryPrefixAndFlip", []target{{"FuzzParse", 120}}},
	{"tokenizer.json", "./tokenizer", "TestParseRefuses|TestParseConfig", "TestEveryPrefixAndFlip", []target{{"FuzzParse", 40}}},
	{"chat templates", "./internal/jinja", "TestRefused", "", []target{{"FuzzTemplate", 10}}},
	{"configuration", "./modelfile", "TestConfigRefused|TestAPRConfigRefusals|TestGGUFConfigRefused|TestCheckTensors", "TestConfigEveryPrefixAndFlip", []target{{"FuzzConfig", 100}}},
	{"JSONL, text", "./corpus", "TestJSONLinesRefused|TestTextRefused", "TestEveryPrefixAndFlip", []target{{"FuzzRecord", 50}, {"FuzzJSONLines", 5}}},
	{"Parquet", "./corpus", "TestParquetRefused", "TestParquetDamage", []target{{"FuzzParquet", 10}, {"FuzzParquetFrames", 15}}},
	{"token shards", "./corpus", "TestShardsRefused", "", nil},
}

func main() {
	execs := flag.Int64("execs", 1_050_000, "executions in all")
	fuzztime := flag.String("fuzztime", "", "time for each target instead, such as 60s")
	least := flag.Int64("least", 1_000_000, "fail below this number of executions in all")
	docs := flag.String("docs", "", "file whose table is rewritten")
	flag.Parse()
	if err := run(*execs, *fuzztime, *least, *docs); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(execs int64, fuzztime string, least int64, docs string) error {
	start := time.Now()
	var table strings.Builder
	table.WriteString("| reader | malformed files with their exact text | prefixes and changed bytes | fuzz executions | crashes |\n|---|---:|---:|---:|---:|\n")
	var files, damaged, total int64
	for _, r := range readers {
		exact, err := cases(r.pkg, r.exact)
		if err != nil {
			return err
		}
		var changes, ran int64
		if r.damage != "" {
			if changes, err = cases(r.pkg, r.damage); err != nil {
				return err
			}
		}
		for _, t := range r.targets {
			limit := fuzztime
			if limit == "" {
				limit = fmt.Sprintf("%dx", max(1, execs*t.share/1000))
			}
			n, err := fuzz(r.pkg, t.name, limit)
			if err != nil {
				return err
			}
			ran += n
		}
		fmt.Fprintf(&table, "| %s | %d | %d | %s | 0 |\n", r.format, exact, changes, group(ran))
		files, damaged, total = files+exact, damaged+changes, total+ran
	}
	fmt.Fprintf(&table, "| all | %d | %d | %s | 0 |\n", files, damaged, group(total))
	fmt.Printf("\n%s\n%d s on %d processors\n", table.String(), int(time.Since(start).Seconds()), runtime.NumCPU())
	if total < least {
		return fmt.Errorf("%d executions, fewer than %d", total, least)
	}
	if docs == "" {
		return nil
	}
	return rewrite(docs, table.String())
}

var caseLine = regexp.MustCompile(`(?m)^\s*APR-CASES \S+ (\d+)$`)

// cases runs tests and returns the cases that they visited.
func cases(pkg, tests string) (int64, error) {
	out, err := exec.Command("go", "test", "-count=1", "-v", "-run", "^("+tests+")$", pkg).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w\n%s", pkg, tests, err, out)
	}
	var n int64
	for _, m := range caseLine.FindAllSubmatch(out, -1) {
		k, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			return 0, err
		}
		n += k
	}
	if n == 0 {
		return 0, fmt.Errorf("%s %s: no case was visited", pkg, tests)
	}
	return n, nil
}

var execsLine = regexp.MustCompile(`execs: (\d+)`)

// fuzz runs one target and returns its executions. The input of a crash is left in testdata/fuzz of the package.
func fuzz(pkg, name, limit string) (int64, error) {
	start := time.Now()
	out, err := exec.Command("go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", limit, "-timeout", "0", pkg).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w\n%s", pkg, name, err, out)
	}
	all := execsLine.FindAllSubmatch(out, -1)
	if len(all) == 0 {
		return 0, fmt.Errorf("%s %s: no executions\n%s", pkg, name, out)
	}
	n, err := strconv.ParseInt(string(all[len(all)-1][1]), 10, 64)
	if err != nil {
		return 0, err
	}
	fmt.Printf("%-22s %-18s %10s executions in %d s\n", pkg, name, group(n), int(time.Since(start).Seconds()))
	return n, nil
}

// group writes a number with commas.
func group(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// rewrite replaces the table of a document.
func rewrite(path, table string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := []byte("<!-- fuzz -->\n"), []byte("<!-- end fuzz -->")
	i, j := bytes.Index(old, begin), bytes.Index(old, end)
	if i < 0 || j < i {
		return errors.New(path + " has no place for the table")
	}
	b := append(append([]byte{}, old[:i+len(begin)]...), "\n"+table+"\n"...)
	return os.WriteFile(path, append(b, old[j:]...), 0o644)
}
