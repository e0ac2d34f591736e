package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// oneDocument writes a text of so many lines, which all differ.
func oneDocument(t *testing.T, name string, lines int) {
	t.Helper()
	var text strings.Builder
	for i := range lines {
		fmt.Fprintf(&text, "func f%d(x int) int { return x + %d }\n", i, i*i)
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A run on a single file, without any flag about evaluation, is scored on text that it was not trained on, also on the
// way; verify and a resumption find the same text.
func TestSmallDataIsScored(t *testing.T) {
	smallRun(t)
	oneDocument(t, "text.txt", 500)
	flags := strings.Fields("distill teacher --student-config student.json -d text.txt --steps 40 --batch-size 4 --seq-len 16 --lr 5e-3 --control ce --backend cpu --checkpoint-every 10")
	code, v := call(t, append(flags, "-o", "whole")...)
	if all, _ := v["evaluations"].([]any); code != 0 || len(all) != 4 || all[0].(map[string]any)["targets"] != 512.0 {
		t.Fatalf("exit %d: %v", code, v)
	}
	if text := fmt.Sprint(v["verdict"]); strings.Contains(text, "too few") {
		t.Errorf("32 windows: %s", text)
	}
	record, err := runlog.Read("whole")
	if err != nil {
		t.Fatal(err)
	}
	at := map[string][]float64{}
	for _, e := range record.Events {
		if d, ok := e.Detail.(map[string]any); ok && e.Name == "held-out during training" {
			at[d["leg"].(string)] = append(at[d["leg"].(string)], d["step"].(float64))
		}
	}
	if want := []float64{10, 20, 30}; !slices.Equal(at["student"], want) || !slices.Equal(at["control"], want) {
		t.Errorf("scored on the way after %v", at)
	}
	if code, v := call(t, "verify", "whole", "--steps", "2"); code != 0 || v["passed"] != true {
		t.Errorf("verify: exit %d: %v", code, v)
	}
	if code, v := callIn(t, []string{"APR_DISTILL_MAX_STEPS=15"}, append(flags, "-o", "parts")...); code != 0 {
		t.Fatalf("exit %d: %v", code, v)
	}
	if code, v := call(t, "runs", "resume", "parts"); code != 0 {
		t.Fatalf("exit %d: %v", code, v)
	}
	want, err := os.ReadFile("whole/student/model.safetensors")
	got, err2 := os.ReadFile("parts/student/model.safetensors")
	if err != nil || err2 != nil || !bytes.Equal(got, want) {
		t.Errorf("the resumed student is another: %v, %v", err, err2)
	}
	// What is asked for is obeyed: a single document is not cut for a fraction.
	if code, v := call(t, append(flags, "--val-fraction", "0.1", "-o", "asked")...); code != 0 || len(v["evaluations"].([]any)) != 0 {
		t.Errorf("exit %d: %v", code, v["evaluations"])
	}
}

// Files of prompts, of questions and of templates may begin with a byte order mark too.
func TestByteOrderMarks(t *testing.T) {
	smallRun(t)
	const mark = "\xef\xbb\xbf"
	for name, text := range map[string]string{
		"prompts.jsonl": `{"prompt": "func"}` + "\n", "items.jsonl": `{"prompt": "1 + 1 =", "choices": [" 2", " 3"], "answer": 0}` + "\n",
		"talk.jsonl": `{"prompt": "package one and two and three", "completion": "func main and more of it"}` + "\n", "chat.jinja": tokenizer.ChatML,
	} {
		if err := os.WriteFile(name, []byte(mark+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{
		"run teacher --batch-jsonl prompts.jsonl -n 1 --cpu", "eval teacher --task choice -d items.jsonl --backend cpu",
		"distill teacher --student-config student.json -d talk.jsonl --chat-template chat.jinja --no-packing --steps 1 --batch-size 1 --seq-len 32 --val-fraction 0 --backend cpu -o talked",
	} {
		contracttest.Cases(t, 1)
		if code, v := call(t, strings.Fields(args)...); code != 0 {
			t.Errorf("apr %s: exit %d: %v", args, code, v)
		}
	}
}

// Little text gives few windows, and no verdict; less gives none, and says what would.
func TestTooFewWindows(t *testing.T) {
	smallRun(t)
	oneDocument(t, "few.txt", 25)
	oneDocument(t, "less.txt", 3)
	for name, tt := range map[string]struct{ said, verdict string }{
		"few.txt":  {"windows of held-out text are too few to tell the student from the control, which takes 16", "windows are too few to tell"},
		"less.txt": {"a fifth of which is less than one window of 16: nothing is held out or evaluated", ""},
	} {
		contracttest.Cases(t, 1)
		var out, errs bytes.Buffer
		code := run(strings.Fields("distill teacher --student-config student.json --steps 10 --batch-size 2 --seq-len 16 --lr 1e-2 --control ce --backend cpu -d "+name+" -o "+name+".run"),
			strings.NewReader(""), &out, &errs, []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()})
		if code != 0 || !strings.Contains(errs.String(), tt.said) || !strings.Contains(strings.Join(strings.Fields(out.String()), " "), tt.verdict) || strings.Contains(out.String(), "worth it:") {
			t.Errorf("%s: exit %d: %s%s", name, code, out.String(), errs.String())
		}
	}
}

// Files as other programs write them: a byte order mark, columns of questions and answers, UTF-16, NUL.
func TestFilesOfOtherPrograms(t *testing.T) {
	small := map[string][]byte{}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join("../../testdata/models/gosrc", name))
		if err != nil {
			t.Fatal(err)
		}
		small[name] = text
	}
	var config map[string]any
	err := json.Unmarshal(small["tokenizer_config.json"], &config)
	if config["chat_template"] = tokenizer.ChatML; err == nil {
		small["tokenizer_config.json"], err = json.Marshal(config)
	}
	t.Chdir(t.TempDir())
	err = errors.Join(err, os.Mkdir("teacher", 0o700))
	for name, text := range small {
		err = errors.Join(err, os.WriteFile(filepath.Join("teacher", name), text, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	const mark = "\xef\xbb\xbf"
	for i, tt := range []struct {
		name, content string
		code          int
		want          string // of the error
		tokens        string // a file that gives the same
	}{
		{"plain.jsonl", `{"text": "package one"}`, 0, "", ""},
		{"marked.jsonl", mark + `{"text": "package one"}`, 0, "", "plain.jsonl"},
		{"marked.txt", mark + "package one", 0, "", "plain.jsonl"},
		{"marked.csv", mark + "text\r\npackage one\r\n", 0, "", "plain.jsonl"},
		{"pairs.jsonl", `{"prompt": "a b", "completion": "c"}`, 0, "", ""},
		{"pairs.csv", mark + "prompt,completion\r\na b,c\r\n", 0, "", "pairs.jsonl"},
		{"pairs.tsv", "completion\tprompt\nc\ta b\n", 0, "", "pairs.jsonl"},
		{"wide.txt", "\xff\xfep\x00", 4, "wide.txt: line 1: is in UTF-16, little-endian, by its byte order mark", ""},
		{"wide.csv", "\xfe\xff\x00p", 4, "wide.csv: line 1: is in UTF-16, big-endian, by its byte order mark", ""},
		{"wide.jsonl", "\xff\xfe{\x00", 4, "wide.jsonl: line 1: is in UTF-16, little-endian, by its byte order mark", ""},
		{"nul.jsonl", `{"text": "a\u0000b"}`, 5, `nul.jsonl: line 1: NUL (\u0000) in the text, at byte 2`, ""},
	} {
		contracttest.Cases(t, 1)
		if err := os.WriteFile(tt.name, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		code, v := call(t, "tokenize", "encode-corpus", "--corpus", tt.name, "--tokenizer", "teacher", "-o", fmt.Sprint("of-", tt.name))
		if code != tt.code || !strings.Contains(errorText(v), tt.want) {
			t.Errorf("%d, %s: exit %d: %s", i, tt.name, code, errorText(v))
		}
		if tt.tokens == "" {
			continue
		}
		shard := func(name string) []byte {
			b, err := os.ReadFile(filepath.Join("of-"+name, "shard-00000.bin"))
			if err != nil {
				t.Error(err)
			}
			return b
		}
		if !bytes.Equal(shard(tt.name), shard(tt.tokens)) {
			t.Errorf("%s has other tokens than %s", tt.name, tt.tokens)
		}
	}
}
