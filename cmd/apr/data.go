package main

import (
	"os"
	"path/filepath"

	"apr/corpus"
	"apr/internal/cli"
)

// fieldOptions name the fields of a record that hold the text.
func fieldOptions(text, messages *string) []cli.Option {
	return []cli.Option{
		{Name: "text-field", Value: cli.String(text, ""), Default: "text, content: the first present", Help: "field or table column that holds the text"},
		{Name: "messages-field", Value: cli.String(messages, "messages"), Help: "field that holds a conversation; distill learns the assistant's turns, eval scores all"},
	}
}

// readOptions converts the flags; an explicit messages field disables text detection.
func readOptions(s cli.Settings, text, messages string) corpus.ReadOptions {
	o := corpus.ReadOptions{TextField: text}
	if s.Given("messages-field") {
		o.MessagesField = messages
	}
	return o
}

// cacheOption says where the tokens of texts are kept.
func cacheOption(folder *string) cli.Option {
	return cli.Option{
		Name: "data-cache", Path: true, Keywords: []string{"auto", "off"}, Value: cli.String(folder, "auto"),
		Help: "cache tokenised corpora of at least 1M tokens, up to 10 GiB: auto (apr/tokens in your cache folder), off, or a folder",
	}
}

// tokenCache returns the cache that cacheOption names, nil for none.
func tokenCache(folder string) *corpus.Cache {
	switch folder {
	case "off":
		return nil
	case "auto":
		user, err := os.UserCacheDir()
		if err != nil {
			return nil // a user without a home keeps nothing
		}
		folder = filepath.Join(user, "apr", "tokens")
	}
	return &corpus.Cache{Dir: folder, MinTokens: corpus.DefaultCacheTokens, MaxBytes: corpus.DefaultCacheBytes}
}
