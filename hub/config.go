package hub

import (
	"net/url"
	"path/filepath"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// DefaultEndpoint is the hub that is asked when HF_ENDPOINT names no other.
const DefaultEndpoint = "https://huggingface.co"

// Config says which hub to ask, as whom, and where the cache is.
type Config struct {
	Endpoint *url.URL // http or https; its path, if any, is a prefix
	Cache    string   // folder of models--ORG--NAME
	Token    Token
	Agent    string // User-Agent
}

// maxToken bounds the file that holds a token.
const maxToken = 4096

// FromEnv reads the variables that the huggingface_hub library reads:
//
//	HF_ENDPOINT   the hub; https://huggingface.co
//	HF_HOME       $XDG_CACHE_HOME/huggingface, or ~/.cache/huggingface
//	HF_HUB_CACHE  the cache; HF_HOME/hub
//	HF_TOKEN      the token; else the content of the file HF_HOME/token
//
// Faults are of kind Usage, or those of reading the token's file. None repeats a secret.
func FromEnv(getenv func(string) string) (Config, error) {
	var c Config
	var err error
	if c.Endpoint, err = parseEndpoint(getenv("HF_ENDPOINT")); err != nil {
		return c, err
	}
	home, err := hubHome(getenv)
	if err != nil {
		return c, err
	}
	if c.Cache, err = expand(getenv("HF_HUB_CACHE"), getenv); err != nil {
		return c, err
	}
	if c.Cache == "" {
		c.Cache = filepath.Join(home, "hub")
	}
	text := getenv("HF_TOKEN")
	if text == "" {
		text, err = readfile.String(filepath.Join(home, "token"), maxToken)
		if err != nil && fault.KindOf(err) != fault.NotFound {
			return c, err
		}
	}
	c.Token, err = NewToken(text)
	return c, err
}

// hubHome returns the folder HF_HOME.
func hubHome(getenv func(string) string) (string, error) {
	if home, err := expand(getenv("HF_HOME"), getenv); home != "" || err != nil {
		return home, err
	}
	cache, err := expand(getenv("XDG_CACHE_HOME"), getenv)
	if err != nil {
		return "", err
	}
	if cache == "" {
		if cache, err = expand("~/.cache", getenv); err != nil {
			return "", err
		}
	}
	return filepath.Join(cache, "huggingface"), nil
}

// expand replaces a leading ~ and makes a path absolute; the empty path stays empty.
func expand(path string, getenv func(string) string) (string, error) {
	if path == "" {
		return "", nil
	}
	if path == "~" || strings.HasPrefix(path, "~/") {
		home := getenv("HOME")
		if home == "" {
			return "", fault.In(fault.Usage, "HOME", "is not set, so there is no place for the cache").WithHint("set HF_HOME").WithID("E-HUB-002")
		}
		path = filepath.Join(home, path[1:])
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fault.In(fault.IO, path, "has no absolute path").Because(err).WithID("E-HUB-002")
	}
	return abs, nil
}

// parseEndpoint reads HF_ENDPOINT. What is refused is not repeated, since it may hold a password.
func parseEndpoint(s string) (*url.URL, error) {
	if s == "" {
		s = DefaultEndpoint
	}
	u, err := url.Parse(strings.TrimRight(s, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fault.In(fault.Usage, "HF_ENDPOINT", "is not http[s]://HOST[:PORT][/PATH] without user, password or query").WithID("E-HUB-003")
	}
	return u, nil
}
