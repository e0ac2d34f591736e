package aprfile

import (
	"fmt"
	"strings"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

func parse(t *testing.T, text string) *Metadata {
	t.Helper()
	m, err := parseMetadata("f", text, 64, func(string, int) {})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMetadataNames(t *testing.T) {
	for _, c := range []struct{ name, text, key, want string }{
		{"canonical", `{"hidden_size":64}`, "hidden_size", "64 true <nil>"},
		{"alias", `{"n_embd":64}`, "hidden_size", "64 true <nil>"},
		{"canonical and equal alias", `{"n_embd":64,"hidden_size":64}`, "hidden_size", "64 true <nil>"},
		{"null canonical", `{"n_embd":64,"hidden_size":null}`, "hidden_size", "64 true <nil>"},
		{"other case", `{"Hidden_Size":64}`, "hidden_size", "0 false <nil>"},
		{"absent", `{}`, "hidden_size", "0 false <nil>"},
		{"last of repeated", `{"hidden_size":1,"hidden_size":2}`, "hidden_size", "2 true <nil>"},
		{"model_config for missing keys", `{"model_config":"{\"num_hidden_layers\":3,\"hidden_size\":7}","hidden_dim":64}`, "num_layers", "3 true <nil>"},
		{"the object before model_config", `{"model_config":"{\"hidden_size\":7}","hidden_dim":64}`, "hidden_size", "64 true <nil>"},
		{"key-value heads default to heads", `{"n_head":4}`, "num_kv_heads", "4 true <nil>"},
		{"head size", `{"n_head":4,"n_embd":64}`, "head_dim", "16 true <nil>"},
		{"head size not whole", `{"n_head":3,"n_embd":64}`, "head_dim", "0 false <nil>"},
		{"no heads", `{"n_head":0,"n_embd":64}`, "head_dim", "0 false <nil>"},
		{"wrong type", `{"n_embd":"64"}`, "hidden_size", `0 false f: metadata key "hidden_size": expected a non-negative integer, found the string "64" [E-APR-017]`},
		{"fraction", `{"n_embd":64.0}`, "hidden_size", `0 false f: metadata key "hidden_size": expected a non-negative integer, found 64.0 [E-APR-017]`},
	} {
		if got := fmt.Sprint(parse(t, c.text).Uint(c.key)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestMetadataAccess(t *testing.T) {
	m := parse(t, `{"z":1,"model_name":"n","rms_norm_eps":1e-6,"tied_embeddings":true,"gone":null,"tokenizer.chat_template":"{{}}"}`)
	name, _, _ := m.Str("name")
	eps, _, _ := m.Float("rms_norm_eps")
	tied, _, _ := m.Bool("tied_embeddings")
	template, _, _ := m.Str("chat_template")
	var keys []string
	for k := range m.All() {
		keys = append(keys, k)
	}
	got := fmt.Sprint(name, eps, tied, template, keys, len(m.Map()), m.Check())
	if want := "n1e-06 true{{}}[z model_name rms_norm_eps tied_embeddings tokenizer.chat_template] 5 []"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	errs := parse(t, `{"rope_theta":"1","tied_embeddings":1,"vocab_size":-1,"architecture":2,"sharding":[],"tokenizer.vocabulary":[1]}`).Check()
	var list []string
	for _, err := range errs {
		list = append(list, err.(*fault.Error).Place)
	}
	if got := strings.Join(list, ", "); got != `metadata key "architecture", metadata key "rope_theta", metadata key "tied_embeddings", metadata key "sharding", `+
		`metadata key "vocab_size", metadata key "tokenizer.vocabulary"` {
		t.Error(got)
	}
}

func TestTokenizer(t *testing.T) {
	tok, ok, err := parse(t, `{"tokenizer.vocabulary":["a","b b"],"tokenizer.merges":["a b b"],"tokenizer.scores":[-1,0.5],"tokenizer.vocab_size":2,`+
		`"tokenizer.model":"gpt2","tokenizer.pre_type":"qwen2","tokenizer.token_type":[1,3],"tokenizer.bos_token_id":0,"tokenizer.eos_token_id":1,`+
		`"tokenizer.add_bos_token":true,"vocab_size":8}`).Tokenizer()
	if !ok || err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(tok.Vocabulary, len(tok.Vocabulary), tok.Merges, tok.Scores, tok.TokenType, tok.ModelType, tok.PreType, *tok.BOS, *tok.EOS, tok.Padding, tok.AddBOS)
	if want := "[a b b] 2 [a b b] [-1 0.5] [1 3]gpt2qwen20 1 <nil> true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, c := range []struct{ name, text, want string }{
		{"no vocabulary", `{"tokenizer.merges":[]}`, "<nil>"},
		{"declared size", `{"tokenizer.vocabulary":["a"],"tokenizer.vocab_size":2}`,
			`f: metadata key "tokenizer.vocab_size": 2, but the vocabulary has 1 tokens (expected the same) [E-APR-041]`},
		{"longer than the rows", `{"tokenizer.vocabulary":["a","b"],"n_vocab":1}`,
			`f: metadata key "vocab_size": 1, but the vocabulary has 2 tokens (expected at least as many) [E-APR-041]`},
		{"scores", `{"tokenizer.vocabulary":["a"],"tokenizer.scores":[1,2]}`,
			`f: metadata key "tokenizer.scores": 2, but the vocabulary has 1 tokens (expected the same length) [E-APR-041]`},
		{"token types", `{"tokenizer.vocabulary":["a"],"tokenizer.token_type":[]}`,
			`f: metadata key "tokenizer.token_type": 0, but the vocabulary has 1 tokens (expected the same length) [E-APR-041]`},
		{"merge not a string", `{"tokenizer.vocabulary":["a"],"tokenizer.merges":[["a","b"]]}`,
			`f: metadata key "tokenizer.merges": expected a string, found an array [E-APR-017]`},
		{"negative id", `{"tokenizer.vocabulary":["a"],"tokenizer.bos_token_id":-1}`,
			`f: metadata key "tokenizer.bos_token_id": expected a non-negative integer, found -1 [E-APR-017]`},
	} {
		if _, ok, err := parse(t, c.text).Tokenizer(); ok || fmt.Sprint(err) != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// TestHead holds every form in which a model keeps its head.
func TestHead(t *testing.T) {
	const n = 2000 // elements; two are 0.1 %
	matrix := func(nonZero int) []byte {
		b := make([]byte, 2*n)
		for i := range nonZero {
			b[2*i+1] = 0x3c
		}
		b[2*n-1] = 0x80 // −0 is zero
		return b
	}
	f16 := func(name string, payload []byte) tensor.Source {
		return source(name, tensor.F16, []int{n / 2, 2}, payload)
	}
	tied := map[string]any{"tied_embeddings": true}
	embed := f16(embedName, matrix(n))
	other := matrix(n)
	other[0] ^= 1
	for _, c := range []struct {
		name    string
		tensors []tensor.Source
		meta    map[string]any
		want    string
	}{
		{"absent", []tensor.Source{embed}, nil, "absent <nil>"},
		{"own", []tensor.Source{embed, f16(headName, other)}, nil, "own <nil>"},
		{"own though tied is claimed", []tensor.Source{embed, f16(headName, other)}, tied, "own <nil>"},
		{"copy", []tensor.Source{embed, f16(headName, matrix(n))}, tied, "copy <nil>"},
		{"copy that is not tied", []tensor.Source{embed, f16(headName, matrix(n))}, nil, "own <nil>"},
		{"zero", []tensor.Source{embed, f16(headName, matrix(2))}, tied, "zero <nil>"},
		{"nearly zero", []tensor.Source{embed, f16(headName, matrix(3))}, tied, "own <nil>"},
		{"dead", []tensor.Source{embed, f16(headName, matrix(2))}, nil,
			`dead P: tensor "lm_head.weight": is at least 99.9 % zero, and tied_embeddings is not set [E-APR-052]`},
		{"no embedding", []tensor.Source{f16(headName, other)}, nil, "own <nil>"},
		{"neither", nil, nil, `own P: tensor "model.embed_tokens.weight": model has neither embedding nor head [E-APR-052]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := t.TempDir() + "/m.apr"
			if err := Write(path, c.tensors, Options{Metadata: c.meta}); err != nil {
				t.Fatal(err)
			}
			form, err := mustOpen(t, path).Head()
			if got := strings.ReplaceAll(fmt.Sprint(form, " ", err), path, "P"); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	empty := mustOpen(t, save(t, with(line{headName, 0, []uint64{5, 2}, 0, 0}, line{embedName, 0, []uint64{1}, 0, 4}).build()))
	if form, err := empty.Head(); form != HeadAbsent || err != nil || !form.Tied() {
		t.Errorf("empty head: %v, %v", form, err)
	}
}
