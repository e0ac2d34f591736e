package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"apr/internal/fault"
)

// Result is what a command found: its JSON members, and its text for people.
type Result interface {
	Text(p *Page)
}

// Command is one command, as data.
type Command struct {
	Name, Short string
	Long        string // paragraphs of --help, may be empty
	Example     string // lines of --help
	Exits       []fault.Kind
	Options     []Option
	Sub         []*Command // subcommands; then Options and Run are empty

	Advice    map[string]string   // kebab-case flags and keys of other programs that no option stands for, with what to do instead
	Nested    map[string][]Nested // dotted configuration keys of another form
	EnvPrefix string              // variables with this prefix that nobody reads give a warning
	ConfigArg bool                // an argument ending in .yaml or .yml is the configuration
	// Stray returns a hint about an argument that no option takes, "" for none. Nil: there are none.
	Stray       func(arg string) string
	PrintConfig bool // adds --print-config
	// Complete is called with the merged settings before anything is required of them; it may add those of an earlier call
	// (Env.TakeOver). Nil: nothing is added.
	Complete func(e *Env, opts []Option) error

	Run func(ctx context.Context, e *Env) (Result, error)

	path        string // as it is called: apr runs show
	printConfig bool
}

// Env is what a running command gets from the outside.
type Env struct {
	In      io.Reader
	Out     io.Writer // for streaming only, buffered (Flush); results are returned. Discards with --json
	Err     io.Writer
	Log     *slog.Logger
	JSON    bool
	Quiet   bool
	Verbose bool
	Offline bool
	// AllowConfigKeys are keys of a model's config.json that are accepted unread.
	AllowConfigKeys []string
	Settings        Settings
	Command         []string // the command line, for records

	env      map[string]string
	app      *App
	progress progressMode
	screen   *screen // of stderr; nil: it is no terminal
	jsonLog  bool
}

// Getenv returns an environment variable, "" when unset.
func (e *Env) Getenv(name string) string { return e.env[name] }

// Environ returns the environment (NAME=VALUE), in order.
func (e *Env) Environ() []string {
	all := make([]string, 0, len(e.env))
	for name, value := range e.env {
		all = append(all, name+"="+value)
	}
	slices.Sort(all)
	return all
}

// Page returns a page on stdout, for a command that prints while it works.
func (e *Env) Page() *Page { return e.app.page }

// table returns the options and those the package adds.
func (c *Command) table() []Option {
	if c.PrintConfig && !slices.ContainsFunc(c.Options, func(o Option) bool { return o.Name == "print-config" }) {
		c.Options = append(c.Options, Option{Name: "print-config", Value: Bool(&c.printConfig, false),
			Help: "print the merged configuration with the origin of each value, and stop"})
	}
	return c.Options
}

// cobra builds the cobra command; path is the chain of names below the program's.
func (c *Command) cobra(a *App, path []string) *cobra.Command {
	path = append(slices.Clone(path), c.Name)
	c.path = a.Name + " " + strings.Join(path, " ")
	cc := &cobra.Command{
		Use: c.Name, Short: c.Short, Long: c.Long, Example: c.Example, Args: cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true, Annotations: map[string]string{},
	}
	a.made[cc] = c
	for _, s := range c.Sub {
		cc.AddCommand(s.cobra(a, path))
	}
	if len(c.Sub) > 0 {
		cc.Use += " COMMAND"
		cc.RunE = a.group
		return cc
	}
	opts := c.table()
	for i := range opts {
		opts[i].register(cc.Flags())
		if opts[i].Arg {
			cc.Use += " " + opts[i].usageName()
			for _, name := range append(opts[i].Foreign, opts[i].Name) {
				if opts[i].Flag {
					break
				}
				cc.Annotations["argument "+name] = strings.ToUpper(opts[i].Name)
			}
		}
		c.complete(a, cc, &opts[i])
	}
	cc.Use += " [flags]"
	cc.RunE = func(cc *cobra.Command, args []string) error { return a.call(cc.Context(), c, args) }
	return cc
}

// complete tells the shell which words option o takes: those of an enumeration, or those that Option.Complete finds.
func (c *Command) complete(a *App, cc *cobra.Command, o *Option) {
	find := o.Complete
	if v, ok := o.Value.(*EnumValue); ok {
		find = func(Settings) []string { return v.words }
	}
	if find == nil || o.EnvOnly {
		return
	}
	words := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		// A flag or a variable such as --dir may say where to look. One that cannot be read says nothing here.
		settings, _ := merge(c.Options, nil, a.env)
		return find(settings), cobra.ShellCompDirectiveDefault
	}
	if o.Arg {
		cc.ValidArgsFunction = words
		return
	}
	_ = cc.RegisterFlagCompletionFunc(o.Name, words) // an error would mean an unknown flag, and this one was registered before
}

// call merges the options of c and runs it.
func (a *App) call(ctx context.Context, c *Command, args []string) error {
	args = a.joinFollowing(c, args)
	e, err := a.environment()
	if err != nil {
		return err
	}
	if a.version && c.Name != "version" {
		return a.callNamed(ctx, "version")
	}
	config := a.config
	if at := slices.IndexFunc(args, isYAML); c.ConfigArg && config == "" && at >= 0 {
		config, args = args[at], slices.Delete(slices.Clone(args), at, at+1)
	}
	if at := slices.IndexFunc(args, isYAML); c.ConfigArg && at >= 0 {
		return fault.New(fault.Usage, "two configuration files: %s and %s", config, args[at])
	}
	if err := assign(c, args); err != nil {
		return err
	}
	if err := c.settle(e, config); err != nil {
		return err
	}
	if c.Complete != nil {
		if err := c.Complete(e, c.Options); err != nil {
			return err
		}
	}
	if c.printConfig {
		a.result = printed(append(slices.Clone(c.Options), a.shared()...), e.Settings)
		return nil
	}
	if err := required(c.Options, e.Settings); err != nil {
		return err
	}
	res, err := c.Run(ctx, e)
	if res != nil {
		a.result = res
	}
	return err
}

// joinFollowing makes --NAME=WORD of --NAME WORD where an option's value is optional and the word is meant as that value: the
// option says so, or the command takes no more arguments. It returns the arguments without such words.
func (a *App) joinFollowing(c *Command, args []string) []string {
	room := 0
	for _, o := range c.Options {
		if _, several := o.Value.(list); o.Arg && several {
			room = len(args)
		} else if o.Arg {
			room++
		}
	}
	for i := range c.Options {
		o := &c.Options[i]
		if o.Follows == nil {
			continue
		}
		nth, words := 0, slices.Clone(a.args)
		for w := 0; w < len(words) && words[w] != "--"; w++ {
			if words[w] != "--"+o.Name && !strings.HasPrefix(words[w], "--"+o.Name+"=") {
				continue
			}
			bare := nth < len(o.given) && o.given[nth] == o.Optional && words[w] == "--"+o.Name && w+1 < len(words)
			if at := slices.Index(args, next(words, w)); bare && at >= 0 && (o.Follows(args[at]) || len(args) > room) {
				o.given[nth] = args[at]
				words[w] += "=" + args[at]
				words, args = slices.Delete(words, w+1, w+2), slices.Delete(slices.Clone(args), at, at+1)
			}
			nth++
		}
		a.args = words
	}
	return args
}

// next returns the word after words[i], "" at the end.
func next(words []string, i int) string {
	if i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// settle merges the sources of c's options into e.Settings.
func (c *Command) settle(e *Env, config string) error {
	var file *configFile
	var err error
	shared := e.app.shared()
	if config != "" {
		if file, err = readConfig(config, append(slices.Clone(c.Options), shared...), c); err != nil {
			return err
		}
	}
	if e.Settings, err = merge(c.Options, file, e.env); err != nil {
		return err
	}
	for _, s := range e.Settings {
		if r := s.replaced; r != nil {
			e.Log.Debug(fmt.Sprintf("--%s replaces %s of %s: %s", r.by, s.Name, r.origin, strings.Join(r.texts, ", ")))
		}
	}
	more, err := merge(shared, file, e.env)
	if err != nil {
		return err
	}
	e.AllowConfigKeys = e.app.allowKeys
	for _, s := range more {
		if s.Origin != "default" {
			e.Settings = append(e.Settings, s)
		}
	}
	for _, name := range unhonoured(c.EnvPrefix, c.Options, e.env) {
		e.Log.Warn("environment variable is not honoured", "name", name)
	}
	return nil
}

// assign gives the positional arguments to the options that take them.
func assign(c *Command, args []string) error {
	for i := range c.Options {
		o := &c.Options[i]
		if !o.Arg || len(args) == 0 {
			continue
		}
		if o.given != nil {
			return fault.New(fault.Usage, "%s is given twice: as argument and by --%s", strings.ToUpper(o.Name), o.Name)
		}
		n := 1
		if _, ok := o.Value.(list); ok {
			n = len(args)
		}
		o.given, args = args[:n:n], args[n:]
	}
	if len(args) == 0 {
		return nil
	}
	err := fault.New(fault.Usage, "unexpected argument %q", args[0])
	if c.Stray != nil {
		if hint := c.Stray(args[0]); hint != "" {
			return err.WithHint("%s", hint)
		}
	}
	return err.WithHint("%s --help shows the usage", c.path)
}

func isYAML(s string) bool { return strings.HasSuffix(s, ".yaml") || strings.HasSuffix(s, ".yml") }
