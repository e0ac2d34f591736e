package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const ready = "\n>>> "

// A conversation by the chat template: commands, several lines, a text that is pasted, both ends.
func TestChat(t *testing.T) {
	c := startConsole(t, 80, "run", "../../testdata/models/gosrc", "-n", "6")
	c.expect("gosrc on cpu, chat; /help lists commands, Ctrl-D ends\n>>> ")
	c.typeKeys("hello\r")
	c.expect("stopped after 6 tokens (--max-tokens)" + ready)
	c.typeKeys("/help\r")
	c.expect("/system TEXT")
	c.expect(ready)
	c.typeKeys("/system Be brief\r")
	c.expect("system message set" + ready)
	c.typeKeys("/nonsense\r")
	c.expect("unknown command /nonsense; /help lists them" + ready)
	c.typeKeys(`"""/reset` + "\r")
	c.expect("\n... ")
	c.typeKeys(`more"""` + "\r")
	c.expect("stopped after 6 tokens")
	c.expect(ready)
	c.typeKeys("\x1b[200~one\rtwo\r\x1b[201~")
	c.expect("\n... ")
	c.expect("\n... ")
	c.typeKeys("\r")
	c.expect("stopped after 6 tokens")
	c.expect(ready)
	c.typeKeys("/reset\r")
	c.expect("the conversation begins anew" + ready)
	c.typeKeys("half a line\x03")
	c.expect("Ctrl-C again, Ctrl-D or /bye ends" + ready)
	c.typeKeys("/bye\r")
	if code := c.ends(); code != 0 {
		t.Errorf("exit %d\n%s", code, c.shown())
	}
}

// Ctrl-C stops an answer and not the program; a second one in a row ends it, as Ctrl-D does.
func TestChatInterrupted(t *testing.T) {
	for _, keys := range []string{"\x03", "\x04"} {
		c := startConsole(t, 80, "run", "../../testdata/models/gosrc-q4_k_m.gguf", "-n", "1900")
		c.expect(">>> ")
		c.typeKeys("package fmt\r")
		c.expect("package fmt\n")
		c.expect(" ") // the answer has begun
		c.typeKeys("\x03")
		c.expect("stopped; Ctrl-C again ends" + ready)
		c.typeKeys("/reset\r")
		c.expect("the conversation begins anew" + ready)
		c.typeKeys("\x03")
		c.expect("Ctrl-C again, Ctrl-D or /bye ends" + ready)
		c.typeKeys(keys)
		if code := c.ends(); code != 0 {
			t.Errorf("exit %d\n%s", code, c.shown())
		}
	}
}

// A model without a chat template continues each line; Enter alone goes on with the text.
func TestChatContinuesText(t *testing.T) {
	const model = "../../testdata/models/gosrc-q4_k_m.gguf"
	c := startConsole(t, 120, "run", model, "-n", "3")
	c.expect("gosrc-q4_k_m.gguf on cpu, continues each line (no chat template); /help lists commands, Ctrl-D ends\n>>> ")
	c.typeKeys("\r")
	c.expect(">>> ") // there is no text yet
	answer := func(typed string) string {
		c.typeKeys(typed + "\r")
		c.expect(typed + "\n")
		from := c.seen
		c.expect("\nstopped after 3 tokens (--max-tokens); Enter goes on" + ready)
		text, _, _ := strings.Cut(c.shown()[from:], "\nstopped")
		return text
	}
	first := answer("package main")
	more := answer("")
	second := answer("func main")
	c.typeKeys("/system Be brief\r")
	c.expect("the model continues texts, so there is no system message")
	c.typeKeys("\x04")
	if code := c.ends(); code != 0 {
		t.Errorf("exit %d\n%s", code, c.shown())
	}
	for prompt, want := range map[string]string{"package main": first, "package main" + first: more, "func main": second} {
		code, v := call(t, "run", model, "-p", prompt, "-n", "3", "--no-gpu")
		if code != 0 || v["text"] != want {
			t.Errorf("exit %d: %q goes on with %q, at the terminal with %q\n%s", code, prompt, v["text"], want, c.shown())
		}
	}
	c = startConsole(t, 120, "run", model, "--chat")
	c.expect("the model has no chat template")
	if code := c.ends(); code == 0 {
		t.Errorf("--chat without a template: exit 0\n%s", c.shown())
	}
}

// A new student of plain text continues lines, though its tokenizer has the teacher's chat template; --chat talks all
// the same.
func TestChatOfPlainText(t *testing.T) {
	dir := t.TempDir()
	config, run := filepath.Join(dir, "config.json"), filepath.Join(dir, "mine")
	if err := os.WriteFile(config, []byte(signalConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, v := call(t, "distill", "../../testdata/models/gosrc", "--student-config", config, "-d", "../../examples/gosrc/data/gosrc-val.jsonl.zst", "-o", run,
		"--steps", "1", "--batch-size", "1", "--seq-len", "16", "--control", "none", "--samples", "0", "--eval-every", "0", "--backend", "cpu"); code != 0 {
		t.Fatalf("exit %d: %v", code, v)
	}
	for flag, want := range map[string]string{
		"":       "mine on cpu, continues each line (trained on plain text, --chat talks all the same); /help lists commands",
		"--chat": "mine on cpu, chat; /help lists commands",
	} {
		args := []string{"run", run, "-n", "2"}
		if flag != "" {
			args = append(args, flag)
		}
		c := startConsole(t, 160, args...)
		c.expect(want)
		c.expect(">>> ")
		c.typeKeys("\x04")
		if code := c.ends(); code != 0 {
			t.Errorf("%s: exit %d\n%s", flag, code, c.shown())
		}
	}
}
