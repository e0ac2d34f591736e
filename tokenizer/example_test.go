package tokenizer_test

import (
	"fmt"
	"log"

	"apr/tokenizer"
)

func Example() {
	t, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	ids := t.Encode("if err != nil {\n\t\treturn ", tokenizer.PlainText)
	text, err := t.Decode(ids)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids)
	fmt.Printf("%q\n", text)
	// Output:
	// [290 322 375 348 273 197 313 220]
	// "if err != nil {\n\t\treturn "
}

// The text of a special token is text, or the token, as the caller says.
func ExampleMode() {
	t, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t.Encode("<|im_end|>", tokenizer.Recognise))
	fmt.Println(len(t.Encode("<|im_end|>", tokenizer.PlainText)), "tokens of plain text")
	// Output:
	// [4095]
	// 7 tokens of plain text
}

// A stream shows a character when its last byte has come.
func ExampleStream() {
	t, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	s := t.NewStream()
	for _, id := range t.Encode("a 好", tokenizer.PlainText) {
		piece, err := s.Push(id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q ", piece)
	}
	fmt.Printf("%q\n", s.Flush())
	// Output:
	// "a" " " "" "" "好" ""
}

// The targets of training are what the assistant says, with the token that ends its turn.
func ExampleChat_Render() {
	t, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		log.Fatal(err)
	}
	chat, err := tokenizer.NewChat(t, t.ChatTemplate())
	if err != nil {
		log.Fatal(err)
	}
	segments, err := chat.Render([]tokenizer.Message{
		{Role: "user", Content: "Close it."},
		{Role: "assistant", Content: "defer f.Close()"},
	}, false)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range segments {
		text, err := t.Decode(s.IDs)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-5t %q\n", s.Target, text)
	}
	// Output:
	// false "<|im_start|>user\nClose it.<|im_end|>\n<|im_start|>assistant\n"
	// true  "defer f.Close()<|im_end|>"
	// false "\n"
}
