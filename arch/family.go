package arch

// family is what this package knows about a model_type: how its configuration is read, and how its tensors are stored.
type family struct {
	name      string   // model_type
	nested    []string // model_types of multimodal configurations whose text_config is of this family
	class     string   // the first of architectures
	gguf      string   // general.architecture
	defaults  defaults
	published []string                 // classes of code that public models of the family bring along, and that transformers has too
	set       func(k *keys, c *Config) // reads the family's own keys
	stored    stored
	period    int                                          // llama.cpp takes every layer for windowed but the last of each period, unless the file says otherwise; 0: none
	square    bool                                         // see NotInLlamaCpp
	windowed  bool                                         // sliding_window absent from config.json is a window, or some layers have one
	rootScale bool                                         // the embedding is multiplied by √hidden_size
	byType    bool                                         // rope_parameters of transformers 5 are by type of layer
	toHF      func(c Config, o object)                     // adds the family's own keys of config.json
	fromGGUF  func(r *ggufReader, o object, kvHeads []int) // adds the family's own keys of config.json; kvHeads of each layer
	toGGUF    func(w *ggufWriter)                          // adds the family's own keys of GGUF
	fits      func(r *ggufReader) bool                     // of several families with one GGUF architecture: the file is of this one
}

// families are all that register was called with: one file of this package each, in the order of their names.
var families []*family

// register makes a family known. Where several have one GGUF architecture, FromGGUF takes the one that fits, else the first
// that has windows if the file does.
func register(f family) *family {
	families = append(families, &f)
	return &f
}

// Families returns the values of model_type that Parse knows.
func Families() (names []string) {
	for _, f := range families {
		names = append(names, f.name)
	}
	return names
}

// Architectures returns the values of general.architecture that FromGGUF knows.
func Architectures() (names []string) {
	seen := map[string]bool{}
	for _, f := range families {
		if !seen[f.gguf] {
			seen[f.gguf] = true
			names = append(names, f.gguf)
		}
	}
	return names
}

// byModelType returns the family of a model_type, or of the text model in a multimodal one.
func byModelType(name string) (f *family, nested bool) {
	for _, f := range families {
		if f.name == name {
			return f, false
		}
		for _, n := range f.nested {
			if n == name {
				return f, true
			}
		}
	}
	return nil, false
}

// family returns the family of c, which Parse and FromGGUF have checked.
func (c Config) family() *family {
	if f, _ := byModelType(c.Family); f != nil {
		return f
	}
	panic("arch: configuration of no known family: " + c.Family)
}

// NotComputed names what a model has that nothing but the judge computes yet, "" if it can be run and trained. Others can
// be described: inspected, counted, converted. No family that is known has any of it.
func (c Config) NotComputed() string {
	for _, l := range c.Layers {
		if l.FFN.MoE.Shared > 0 {
			return "shared experts"
		}
	}
	return ""
}
