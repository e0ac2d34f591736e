package cli

import (
	"strings"

	"github.com/spf13/pflag"

	"apr/internal/fault"
)

// Option is one row of a command's option table.
type Option struct {
	Name    string // kebab-case flag name; the configuration key is the same with _ for -
	Short   string // one-letter flag, or empty
	Value   Value  // type, storage and default
	Help    string // one line
	Default string // says the default where the value does not ("from --epochs")
	Env     string // environment variable, or empty
	// FromEnv returns a text and the variable that says it where Env alone cannot; an empty name: none does.
	FromEnv   func(getenv func(string) string) (text, name string)
	Replaces  []string // options that count as not given where this one is given in a stronger place
	Aliases   []string // other flag names and configuration keys
	Foreign   []string // kebab-case names in other programs: refused like any unknown name, with this option as the hint
	First     bool     // --help lists it before the options that most users leave alone
	Group     string   // title under which --help lists it; empty: Flags
	ListedBy  string   // the command whose --help lists it, if this one's does not
	Hidden    bool     // --help does not list it: its only value that works is the default
	Path      bool     // a path; in a configuration file it is relative to that file
	Keywords  []string // with Path: texts that are not paths, such as auto
	After     string   // with Path or Model: what stands between a name before the path and the path
	Model     bool     // a model: as Path, but org/name that is no such file stays a hub reference
	Pairs     bool     // with a list: in a file [a, b] is the element a:b
	Negatable bool     // a Bool that also has --no-NAME
	Optional  string   // what --NAME without a value means; empty: a value is required
	// Follows reports whether the word after a bare --NAME is its value and not an argument; with Optional. Nil: it never is.
	Follows  func(word string) bool
	Complete func(Settings) []string // words that the shell offers for its value
	NotBuilt string                  // what is not built yet: --help does not list the option, and setting it is exit 9
	Arg      bool                    // a positional argument and a configuration key, not a flag
	Flag     bool                    // with Arg: --NAME may be given in place of the argument
	EnvOnly  bool                    // neither flag nor configuration key
	Required bool                    // must be given by flag, argument, environment or configuration
	Bits     Bits                    // whether it can change the bits of a result

	given []string // texts from the command line, in order
}

// key returns the option's name in a configuration file.
func (o *Option) key() string { return strings.ReplaceAll(o.Name, "-", "_") }

// Keys of a flag's annotations: Option.Foreign, Option.Name.
const (
	foreignNames = "foreign"
	ownName      = "name"
)

// spelled returns a flag or a configuration key as a kebab-case name.
func spelled(word string) string { return strings.ReplaceAll(strings.ToLower(word), "_", "-") }

// flagAdapter collects the texts of a flag; they are parsed when all sources are merged.
type flagAdapter struct {
	opt  *Option
	meta string
	neg  bool // --no-NAME
}

func (f flagAdapter) String() string { return "" }
func (f flagAdapter) Type() string   { return f.meta }
func (f flagAdapter) Set(s string) error {
	if f.neg {
		var b bool
		v := boolValue{p: &b}
		if err := v.set(s); err != nil {
			return fault.New(fault.Usage, "%s", err.Error())
		}
		b = !b
		s = v.text()
	}
	f.opt.given = append(f.opt.given, s)
	return nil
}

// register adds the option's flags to fs.
func (o *Option) register(fs *pflag.FlagSet) {
	if o.Arg && !o.Flag || o.EnvOnly {
		return
	}
	b, isBool := o.Value.(*boolValue)
	add := func(name, short string, neg bool) *pflag.Flag {
		f := fs.VarPF(flagAdapter{o, o.placeholder(), neg}, name, short, o.Help)
		if isBool && !b.onOff {
			f.NoOptDefVal = "true"
		} else if o.Optional != "" {
			f.NoOptDefVal = o.Optional
		}
		f.Annotations = map[string][]string{foreignNames: o.Foreign, ownName: {o.Name}}
		return f
	}
	add(o.Name, o.Short, false).Hidden = !o.listed()
	for _, a := range o.Aliases {
		add(a, "", false).Hidden = true
	}
	if o.Negatable {
		add("no-"+o.Name, "", true).Hidden = true
	}
}

// placeholder is the type of the flag's value, for errors; pflag knows a switch by the word bool.
func (o *Option) placeholder() string {
	b, isBool := o.Value.(*boolValue)
	switch {
	case isBool && !b.onOff:
		return "bool"
	case o.Model:
		return "MODEL"
	case o.Path:
		return "PATH"
	}
	return o.Value.meta()
}

// listed reports whether --help lists the option.
func (o *Option) listed() bool { return !o.EnvOnly && !o.Hidden && o.NotBuilt == "" }

// maxWords bounds the words of an enumeration that stand beside the flag's name, in columns; more stand in its text.
const maxWords = 60

// usage returns the option's name with its value, and its text in --help: alias, default, variable.
func (o *Option) usage() (left, text string) {
	left = "    --" + o.Name
	if o.Short != "" {
		left = "-" + o.Short + ", --" + o.Name
	}
	text = o.Help
	value := o.placeholder()
	if value == "bool" {
		value = ""
	}
	if words := value; len(words) > maxWords {
		value = "NAME"
		text += ": " + strings.ReplaceAll(words, "|", ", ")
	}
	if value != "" && o.Optional != "" {
		value = "[" + value + "]"
	}
	if value != "" {
		left += " " + value
	}
	if len(o.Aliases) > 0 {
		text += "; alias --" + strings.Join(o.Aliases, ", --")
	}
	if o.Negatable {
		text += "; --no-" + o.Name + " for the opposite"
	}
	def := o.Default
	if def == "" {
		def = o.Value.text()
		if b, ok := o.Value.(*boolValue); ok && !b.onOff {
			def = map[bool]string{true: "on"}[*b.p]
		}
	}
	if def != "" {
		text += " (default: " + def + ")"
	}
	if o.Env != "" {
		text += " [$" + o.Env + "]"
	}
	return left, text
}

// description is the option's text in the schema.
func (o *Option) description() string {
	_, text := o.usage()
	if o.NotBuilt != "" {
		text += " [not built yet]"
	}
	return text
}

// usageName is how an argument stands in the usage line.
func (o *Option) usageName() string {
	s := strings.ToUpper(o.Name)
	if _, ok := o.Value.(list); ok {
		s += "…"
	}
	if !o.Required {
		s = "[" + s + "]"
	}
	return s
}
