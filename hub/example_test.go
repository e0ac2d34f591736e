package hub_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"apr/hub"
	"apr/hub/hubtest"
)

func ExampleClient_Pull() {
	server := hubtest.New("org/name", map[string][]byte{
		"config.json": []byte("{}"), "tokenizer.json": []byte("{}"), "model.safetensors": []byte("weights"), "README.md": []byte("text"),
	})
	defer server.Close()
	endpoint, err := url.Parse(server.Hub.URL)
	if err != nil {
		panic(err)
	}
	cache, err := os.MkdirTemp("", "hub")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(cache)

	ref, err := hub.ParseRef("hf://org/name@v1")
	if err != nil {
		panic(err)
	}
	client := hub.New(hub.Config{Endpoint: endpoint, Cache: cache}, nil)
	snapshot, err := client.Pull(context.Background(), ref, hub.Options{})
	if err != nil {
		panic(err)
	}
	rel, err := filepath.Rel(cache, snapshot.Path)
	if err != nil {
		panic(err)
	}
	fmt.Println(rel)
	for _, f := range snapshot.Files {
		fmt.Println(f.Name, f.Size)
	}
	// Output:
	// models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567
	// config.json 2
	// model.safetensors 7
	// tokenizer.json 2
}
