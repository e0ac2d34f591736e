//go:build !windows

package hub

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/fault"
)

// TestTokenHides: no way of printing shows it.
func TestTokenHides(t *testing.T) {
	token, err := NewToken(" " + canary + "\n")
	if err != nil || *token.secret != canary {
		t.Fatal(err)
	}
	type outer struct {
		Token  Token
		inner  Token
		Nested struct{ t *Token }
	}
	o := outer{Token: token, inner: token}
	o.Nested.t = &token
	c := New(Config{Endpoint: mustURL(t, "http://localhost"), Token: token}, nil)
	values := []any{token, &token, o, &o, []Token{token}, map[string]Token{"a": token}, map[Token]int{token: 1}, c.cfg, *c.http, c.http.Transport}
	var text strings.Builder
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%08.3f", "%T"} {
			fmt.Fprintf(&text, verb+"\n", v)
		}
		if data, err := json.Marshal(v); err == nil {
			text.Write(data)
		}
		slog.New(slog.NewJSONHandler(&text, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&text, nil)).Info("x", "v", v)
	}
	plain, err := token.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	text.Write(plain)
	text.WriteString(token.GoString())
	hex := fmt.Sprintf("%x", canary)
	if s := text.String(); strings.Contains(s, canary) || strings.Contains(strings.ToLower(s), hex) {
		t.Errorf("the token shows:\n%s", s)
	}
	if !strings.Contains(text.String(), "[token]") {
		t.Error("nothing was printed")
	}
}

func TestFromEnv(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "hf"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "hf", "token"), []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name                   string
		env                    map[string]string
		endpoint, cache, token string // ~ is home
		kind                   fault.Kind
	}{
		{"defaults", nil, DefaultEndpoint, "~/.cache/huggingface/hub", "", 0},
		{"XDG", map[string]string{"XDG_CACHE_HOME": "/c"}, DefaultEndpoint, "/c/huggingface/hub", "", 0},
		{"HF_HOME with a token", map[string]string{"HF_HOME": "~/hf"}, DefaultEndpoint, "~/hf/hub", canary, 0},
		{"HF_TOKEN wins", map[string]string{"HF_HOME": "~/hf", "HF_TOKEN": "other"}, DefaultEndpoint, "~/hf/hub", "other", 0},
		{"HF_HUB_CACHE", map[string]string{"HF_HOME": "~/hf", "HF_HUB_CACHE": "/big"}, DefaultEndpoint, "/big", canary, 0},
		{"endpoint", map[string]string{"HF_ENDPOINT": "https://mirror:8443/hf/"}, "https://mirror:8443/hf", "~/.cache/huggingface/hub", "", 0},
		{"endpoint with a password", map[string]string{"HF_ENDPOINT": "https://u:" + canary + "@mirror"}, "", "", "", fault.Usage},
		{"endpoint with a query", map[string]string{"HF_ENDPOINT": "https://mirror?t=" + canary}, "", "", "", fault.Usage},
		{"endpoint of another scheme", map[string]string{"HF_ENDPOINT": "ftp://mirror"}, "", "", "", fault.Usage},
		{"no URL", map[string]string{"HF_ENDPOINT": "mirror"}, "", "", "", fault.Usage},
		{"token of two lines", map[string]string{"HF_TOKEN": canary + "\nX: y"}, "", "", "", fault.Usage},
		{"no home", map[string]string{"HOME": ""}, "", "", "", fault.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := FromEnv(func(name string) string {
				if v, ok := tt.env[name]; ok {
					return v
				}
				return map[string]string{"HOME": home}[name]
			})
			noCanary(t, err)
			if fault.KindOf(err) != tt.kind {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				return
			}
			token := ""
			if c.Token.IsSet() {
				token = *c.Token.secret
			}
			if want := strings.Replace(tt.cache, "~", home, 1); c.Endpoint.String() != tt.endpoint || c.Cache != want || token != tt.token {
				t.Errorf("got %s, %s, %s", c.Endpoint, c.Cache, token)
			}
		})
	}
}
