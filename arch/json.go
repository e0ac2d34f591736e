package arch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"apr/internal/strictjson"
)

// JSON returns c in its canonical form: sorted keys, no blanks, the shortest numbers. Equal descriptions have equal
// bytes. DType and Stored are left out.
func (c Config) JSON() []byte {
	text, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("arch: config does not encode: %v", err)) // finite by check
	}
	v, err := strictjson.Parse(string(text), strictjson.Options{})
	if err != nil {
		panic(fmt.Sprintf("arch: own JSON does not parse: %v", err))
	}
	out, err := strictjson.AppendCanonical(nil, v)
	if err != nil {
		panic(fmt.Sprintf("arch: own JSON does not encode: %v", err))
	}
	return out
}

// Hash returns the SHA-256 of JSON in hexadecimal digits.
func (c Config) Hash() string {
	sum := sha256.Sum256(c.JSON())
	return hex.EncodeToString(sum[:])
}

// Equal reports whether two descriptions are the same.
func (c Config) Equal(o Config) bool { return string(c.JSON()) == string(o.JSON()) }

// FromJSON reads what JSON wrote; path names it in errors.
func FromJSON(path, text string) (Config, error) {
	var c Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, strictjson.Fault(path, text, &strictjson.Error{Code: strictjson.Type, Msg: err.Error()})
	}
	if f, _ := byModelType(c.Family); f == nil {
		return c, (&unknownFamily{what: "model_type", name: c.Family}).fault(path)
	}
	if err := c.check(path); err != nil {
		return c, err
	}
	if string(c.JSON()) != text {
		return c, strictjson.Fault(path, text, &strictjson.Error{Code: strictjson.Type, Msg: "is not the canonical form of a description"})
	}
	return c, nil
}
