package modelfile

import (
	"errors"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/internal/fault"
	"apr/tokenizer"
)

// Tokenizer returns the model's tokenizer; it is read at the first call. A model without one is a fault of kind Load
// or NotFound.
func (f *Files) Tokenizer() (*tokenizer.Tokenizer, error) {
	if f.tok == nil {
		tok, err := f.ReadTokenizer()
		if err != nil {
			return nil, err
		}
		warning, err := CheckTokenizer(f.Path, tok, f.Config.Vocab)
		if err != nil {
			return nil, err
		}
		if warning != "" && f.Warn != nil {
			f.Warn(warning)
		}
		f.tok = tok
	}
	return f.tok, nil
}

// CheckTokenizer refuses a tokenizer that the model at path cannot use: with more ids than rows, or with most merges missing. It returns
// what is doubtful.
func CheckTokenizer(path string, tok *tokenizer.Tokenizer, rows int) (warning string, err error) {
	if err := tok.CheckRows(rows); err != nil {
		return "", err
	}
	warning, err = tok.CheckMerges()
	var e *fault.Error
	if errors.As(err, &e) {
		e.Path = path
	}
	if warning != "" {
		warning = path + ": tokenizer: " + warning
	}
	return warning, err
}

// HasNoTokenizer reports whether err, of Tokenizer, says that the model has none; one that cannot be read is another matter.
func HasNoTokenizer(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && slices.Contains([]string{"E-FILE-001", "E-MODEL-010", "E-TOK-020"}, f.ID)
}

// hfTokenizer loads the tokenizer of a Hugging Face folder. Without tokenizer_config.json the end-of-text id is that
// of the configuration.
func hfTokenizer(dir string, config func() (arch.Config, error)) (*tokenizer.Tokenizer, error) {
	tok, err := tokenizer.Load(dir)
	if err != nil || tok.EOS() != tokenizer.None {
		return tok, err
	}
	c, err := config()
	if err != nil || len(c.EOS) == 0 {
		return tok, err
	}
	d := tok.Data()
	d.EOS = int32(c.EOS[0])
	return tokenizer.FromData(filepath.Join(dir, "tokenizer.json"), d)
}

// hfOutline is the outline of what hfTokenizer loads.
func hfOutline(dir string, config func() (arch.Config, error)) (tokenizer.Outline, error) {
	o, err := tokenizer.LoadOutline(dir)
	if err != nil || o.EOS != tokenizer.None {
		return o, err
	}
	c, err := config()
	if err == nil && len(c.EOS) > 0 {
		o.EOS = int32(c.EOS[0])
	}
	return o, err
}
