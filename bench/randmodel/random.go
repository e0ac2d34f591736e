// Package randmodel makes models of every family with random weights: configurations as public models have them, with small
// numbers, and a tokenizer of the family's kind. Weights follow from the names of slots, and are such that each feature of a
// model shows in its logits.
//
// Caveats. The models know no language. Their tokenizers are small ones of testdata, so that the root of the module is needed.
package randmodel

import (
	"embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"apr/arch"
	"apr/tokenizer"
)

// Model is a random model, and what llama.cpp makes of it.
type Model struct {
	Name       string `json:"name"`       // of its config.json in families
	Title      string `json:"title"`      // of the model, if not Name: llama.cpp wants a token <|endoftext|> of one that is called phi3
	Tokenizer  string `json:"tokenizer"`  // a folder of testdata/tokenizers
	NoPrefix   bool   `json:"no_prefix"`  // the way with spaces of tokenizers that put none before a text
	Differs    string `json:"differs"`    // what llama.cpp computes otherwise; "": nothing
	Unloadable bool   `json:"unloadable"` // llama.cpp refuses the file, as Differs says
	OtherIDs   int    `json:"other_ids"`  // prompts that have other ids in llama.cpp
	Fixture    string `json:"fixture"`    // the type of the file in testdata/gguf; "": none
	Deep       bool   `json:"deep"`       // too many layers for TestFeaturesMatter

	Thin bool `json:"-"` // few different rows
}

//go:embed models.json
var modelsJSON []byte

// Models are the random models of every family, with variants. They are data beside the configurations, for no code but
// arch's names a family.
var Models = func() (list []Model) {
	if err := json.Unmarshal(modelsJSON, &list); err != nil {
		panic(err)
	}
	return list
}()

const seed = 1 // of the weights

// configs are one config.json per row of the table of families, as public models have them with small numbers: rows of
// whole K-quant blocks, an ε that matters, windows and lengths that a prompt exceeds.
//
//go:embed families/*.json
var configs embed.FS

// spread is the standard deviation that attention scores have before any cap, and logits before theirs are about three
// times it: features that are left out then change logits by far more than float32 rounds.
const spread = 2

// rare reports whether a continuation should not have the token: it ends the text, or is no text by itself, so that the
// server reports no log-probabilities for it.
func rare(tok *tokenizer.Tokenizer, id int) bool {
	if id >= tok.RealIDs() || tok.Kind(int32(id)) != tokenizer.Normal {
		return true
	}
	text, err := tok.Decode([]int32{int32(id)})
	return err != nil || !utf8.ValidString(text) || strings.ContainsRune(text, utf8.RuneError)
}

// Weights returns values for every slot of c, which follow from the slots' names. Logits of rare tokens are kept
// small. In a thin model every matrix has few different rows, in an order of its own, so that files of it compress well.
func Weights(c arch.Config, tok *tokenizer.Tokenizer, thin bool) map[string][]float32 {
	params := map[string][]float32{}
	for _, s := range arch.Slots(c) {
		mean, sd := moments(c, s)
		v, cols := make([]float32, s.Elements()), s.Shape[len(s.Shape)-1]
		rng := draw(s.Name)
		for i := range v {
			v[i] = float32(mean + sd*rng.NormFloat64())
		}
		if thin && len(s.Shape) > 1 {
			thinOut(v, s, mean, sd)
		}
		if s.Role == arch.Embedding || s.Role == arch.Head {
			for i := range v {
				if rare(tok, i/cols) {
					v[i] *= .2
				}
			}
		}
		params[s.Name] = v
	}
	return params
}

func draw(name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// thinRows are the different rows of a thin model's matrices of one role.
const thinRows = 6

// thinOut replaces the rows of a matrix by a few, which all layers share.
func thinOut(v []float32, s arch.Slot, mean, sd float64) {
	cols := s.Shape[len(s.Shape)-1]
	rows, order := make([]float32, thinRows*cols), draw(s.Name)
	rng := draw(fmt.Sprint(s.Role, " of ", cols))
	for i := range rows {
		rows[i] = float32(mean + sd*rng.NormFloat64())
	}
	for r := 0; r < len(v); r += cols {
		copy(v[r:r+cols], rows[order.IntN(thinRows)*cols:])
	}
}

// moments returns mean and standard deviation of a slot's values.
func moments(c arch.Config, s arch.Slot) (mean, sd float64) {
	in := 1.0
	if n := len(s.Shape); n > 1 {
		in = float64(s.Shape[n-1])
	}
	fan := 1 / math.Sqrt(in)
	var a arch.Attention
	if s.Layer >= 0 {
		a = c.Layers[s.Layer].Attn
	}
	sharp := math.Sqrt(spread / (a.Scale * math.Sqrt(float64(a.HeadDim)))) // of q and k each
	switch {
	case s.Bias:
		return 0, .3
	case s.Role == arch.Norm && (strings.HasSuffix(s.Name, "q_norm.weight") || strings.HasSuffix(s.Name, "k_norm.weight")):
		return sharp - c.NormOffset, .3 * sharp
	case s.Role == arch.Norm && s.Name == "model.norm.weight" && c.Tied:
		gain := 3 * spread / (math.Sqrt(float64(c.Hidden)) / c.EmbedScale * c.LogitScale)
		return gain - c.NormOffset, .3 * gain
	case s.Role == arch.Norm && strings.HasSuffix(s.Name, "linear_attn.norm.weight"):
		return 1, .3
	case s.Role == arch.Norm:
		return 1 - c.NormOffset, .3
	case s.Role == arch.Embedding:
		return 0, 1 / c.EmbedScale
	case s.Role == arch.Head:
		return 0, 3 * spread * fan
	case (s.Role == arch.Q || s.Role == arch.K) && a.QKNorm == arch.NoQKNorm:
		return 0, sharp * fan
	case s.Role == arch.O || s.Role == arch.Down:
		return 0, 1.5 * fan / c.Layers[s.Layer].Residual
	case s.Role == arch.Router:
		return 0, 2 * fan
	case s.Role == arch.Sinks, s.Role == arch.DeltaDT:
		return 0, 1
	case s.Role == arch.Scale:
		return 1, .3
	case s.Role == arch.DeltaALog, s.Role == arch.DeltaConv:
		return 0, .5
	case s.Role == arch.PLETable:
		return 0, 1 / math.Sqrt(float64(c.PLE.Width))
	}
	return 0, 1.5 * fan
}
