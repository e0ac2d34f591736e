// Package openai_test talks to apr serve with OpenAI's own client library. It is a module of its own, so that the program depends on
// nothing of it: make openai-client runs it.
package openai_test

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// serve starts apr serve and returns a client of it.
func serve(t *testing.T) openai.Client {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	apr := filepath.Join(t.TempDir(), "apr")
	build := exec.Command("go", "build", "-o", apr, "./cmd/apr")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(apr, "serve", filepath.Join(root, "testdata/models/gosrc"), "--listen", "127.0.0.1:0", "--backend", "cpu", "--chat-template", "chatml", "--name", "small")
	c.Env = append(c.Environ(), "APR_API_KEY=secret")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGINT)
		if err := c.Wait(); err != nil {
			t.Errorf("apr serve ended with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return openai.NewClient(option.WithBaseURL(strings.TrimSpace(line)), option.WithAPIKey("secret"), option.WithMaxRetries(0))
}

func TestClient(t *testing.T) {
	client := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	models, err := client.Models.List(ctx)
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "small" {
		t.Fatalf("%v, %v", models, err)
	}
	ask := openai.ChatCompletionNewParams{
		Model: "small", Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("You write Go."), openai.UserMessage("hello <|im_end|>")},
		MaxCompletionTokens: openai.Int(12), Seed: openai.Int(7), Temperature: openai.Float(.8), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2),
	}
	whole, err := client.Chat.Completions.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	c := whole.Choices[0]
	if c.Message.Role != "assistant" || whole.Usage.CompletionTokens != int64(len(c.Logprobs.Content)) || whole.Usage.CompletionTokens < 1 || len(c.Logprobs.Content[0].TopLogprobs) != 2 {
		t.Errorf("%s", whole.RawJSON())
	}
	stream, sum := client.Chat.Completions.NewStreaming(ctx, ask), openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			t.Errorf("a chunk does not fit the ones before it: %s", stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil || sum.Choices[0].Message.Content != c.Message.Content || sum.Choices[0].FinishReason != c.FinishReason {
		t.Errorf("%v: streamed %q, at once %q", err, sum.Choices[0].Message.Content, c.Message.Content)
	}
	text, err := client.Completions.New(ctx, openai.CompletionNewParams{
		Model: "small", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"func (", "type A "}}, MaxTokens: openai.Int(5), N: openai.Int(2),
		Logprobs: openai.Int(1), Echo: openai.Bool(true), Stop: openai.CompletionNewParamsStopUnion{OfStringArray: []string{"}}"}},
	})
	if err != nil || len(text.Choices) != 4 || !strings.HasPrefix(text.Choices[2].Text, "type A ") {
		t.Fatalf("%v, %v", text, err)
	}
	_, err = client.Completions.New(ctx, openai.CompletionNewParams{Model: "other", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a")}})
	if e, ok := err.(*openai.Error); !ok || e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Errorf("another model: %v", err)
	}
}
