package main

import (
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
		c.typeKeys("package main\r")
		c.expect("package main\n")
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

// The text of a model without a chat template goes on from turn to turn: what is typed later is read behind the answer.
func TestChatContinuesText(t *testing.T) {
	const model = "../../testdata/models/gosrc-q4_k_m.gguf"
	c := startConsole(t, 120, "run", model, "-n", "3")
	c.expect("no chat template: the model continues what you type")
	c.expect(">>> ")
	answer := func(typed string) string {
		c.typeKeys(typed + "\r")
		c.expect(typed + "\n")
		from := c.seen
		c.expect("\nstopped after 3 tokens (--max-tokens)" + ready)
		text, _, _ := strings.Cut(c.shown()[from:], "\nstopped")
		return text
	}
	first := answer("package main")
	second := answer("func main")
	c.typeKeys("\x04")
	if code := c.ends(); code != 0 {
		t.Errorf("exit %d\n%s", code, c.shown())
	}
	code, v := call(t, "run", model, "-p", "package main"+first+"func main", "-n", "3", "--no-gpu")
	if code != 0 || v["text"] != second {
		t.Errorf("exit %d: %q, the conversation gave %q\n%s", code, v["text"], second, c.shown())
	}
}
