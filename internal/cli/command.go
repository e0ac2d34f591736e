package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// group runs when a command with subcommands was called without one of them.
func (a *App) group(cc *cobra.Command, args []string) error {
	if _, err := a.environment(); err != nil {
		return err
	}
	switch {
	case a.version:
		return a.callNamed(cc.Context(), "version")
	case len(args) > 0:
		return a.unknownCommand(cc, args[0])
	case cc.HasParent():
		return fault.New(fault.Usage, "%s needs a subcommand: %s", cc.CommandPath(), strings.Join(names(cc), ", "))
	}
	return cc.Help()
}

func names(cc *cobra.Command) []string {
	var ns []string
	for _, s := range cc.Commands() {
		if !s.Hidden {
			ns = append(ns, s.Name())
		}
	}
	return ns
}

// unknownCommand is a usage error that names the command that other programs call so, or the nearest one.
func (a *App) unknownCommand(cc *cobra.Command, word string) error {
	err := fault.New(fault.Usage, "unknown command %q", word)
	if ours := a.Foreign[strings.ToLower(word)]; ours != "" && !cc.HasParent() {
		return err.WithHint("did you mean %q?", a.Name+" "+ours)
	}
	if n := fault.Nearest(word, names(cc)); n != "" {
		return err.WithHint("did you mean %q?", n)
	}
	return err.WithHint("%s --help lists the commands", cc.CommandPath())
}

// flagError turns pflag's complaints into usage errors that name the nearest flag.
func (a *App) flagError(cc *cobra.Command, err error) error {
	a.unparsed = true
	var notExist *pflag.NotExistError
	var noValue *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &notExist):
		if w := firstWord(a.args); cc.HasSubCommands() && w != "" && !cc.HasParent() {
			return a.unknownCommand(cc, w)
		}
		return a.unknownFlag(cc, notExist)
	case errors.As(err, &noValue):
		f := noValue.GetFlag()
		adapter, ok := f.Value.(flagAdapter)
		if !ok {
			return fault.In(fault.Usage, "--"+f.Name, "needs a value")
		}
		return fault.In(fault.Usage, "--"+f.Name, "needs a value: %s", expected(adapter.opt.Value))
	case errors.As(err, &invalid):
		return placed(invalid.Unwrap(), "--"+invalid.GetFlag().Name, "")
	}
	return fault.New(fault.Usage, "%s", err.Error())
}

func (a *App) unknownFlag(cc *cobra.Command, e *pflag.NotExistError) error {
	if s := e.GetSpecifiedShortnames(); s != "" {
		return fault.New(fault.Usage, "unknown flag -%s", e.GetSpecifiedName()).WithHint("%s --help lists the flags", cc.CommandPath())
	}
	name := e.GetSpecifiedName()
	if arg := cc.Annotations["argument "+spelled(name)]; arg != "" {
		return fault.New(fault.Usage, "unknown flag --%s", name).WithHint("%s is an argument, given without a flag: %s", arg, cc.UseLine())
	}
	var known []string
	foreign := ""
	add := func(f *pflag.Flag) {
		known = append(known, f.Name)
		if slices.Contains(f.Annotations[foreignNames], spelled(name)) {
			foreign = f.Annotations[ownName][0]
		}
	}
	cc.Flags().VisitAll(add)
	cc.InheritedFlags().VisitAll(add)
	err := fault.New(fault.Usage, "unknown flag --%s", name)
	if c := a.made[cc]; c != nil && foreign == "" && c.Advice[spelled(name)] != "" {
		return err.WithHint("%s", c.Advice[spelled(name)])
	}
	if n := cmp.Or(foreign, fault.Nearest(name, known)); n != "" {
		return err.WithHint("did you mean --%s?", n)
	}
	return err.WithHint("%s --help lists the flags", cc.CommandPath())
}

// firstWord returns the first argument that is not a flag.
func firstWord(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

var exitMeanings = map[fault.Kind]string{
	0: "success", fault.Other: "other failure, including an internal error", fault.Usage: "usage",
	fault.NotFound: "file or model not found, or not a file", fault.Format: "bad or unsupported format",
	fault.Invalid: "validation failed: threshold, content, overwrite refused",
	fault.Load:    "model could not be loaded (missing tensor, shape, tokenizer)", fault.IO: "I/O, disk full",
	fault.Inference: "inference failed", fault.Unavailable: "feature or device not available",
	fault.Network: "network", fault.HTTP404: "HTTP 404", fault.Stopped: "stopped by a signal",
	fault.Diverged: "diverged: three steps in a row not finite, or with a loss far above those before", fault.Hung: "hung: no progress",
	fault.Memory: "out of memory, predicted or met", fault.UnsafePath: "unsafe path",
	fault.Vacuous: "vacuous or invalid contract",
}

// everyExit are the exit codes of every command: a configuration may be missing, stdout may be full.
var everyExit = []fault.Kind{0, fault.Other, fault.Usage, fault.NotFound, fault.IO}

// ExitCodes returns the exit codes of a command, ascending: of every command, and its own or those of its subcommands.
func (c *Command) ExitCodes() (codes []int) {
	for _, k := range slices.Concat(everyExit, c.Exits) {
		codes = append(codes, int(k))
	}
	for _, s := range c.Sub {
		codes = append(codes, s.ExitCodes()...)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// resumes reports whether the command, or one below it, goes on with what a signal stopped.
func (c *Command) resumes() bool {
	return slices.ContainsFunc(c.Options, func(o Option) bool { return o.Name == "resume" }) || slices.ContainsFunc(c.Sub, (*Command).resumes)
}

// exitRows lists exit codes with their meanings. A second signal ends any command at once, with 128 and its number.
func exitRows(codes []int, resumes bool) (rows [][2]string) {
	for _, k := range codes {
		meaning := exitMeanings[fault.Kind(k)]
		if k == int(fault.Stopped) && resumes {
			meaning += ", resumable"
		}
		rows = append(rows, [2]string{fmt.Sprintf("%-3d", k), meaning})
	}
	if slices.Contains(codes, int(fault.Stopped)) {
		for _, s := range namedSignals {
			if s.signal != 0 { // this system has it
				rows = append(rows, [2]string{strconv.Itoa(128 + int(s.signal)), "ended at once by a second signal: " + s.name})
			}
		}
	}
	return rows
}

var namedSignals = []struct {
	signal syscall.Signal
	name   string
}{{syscall.SIGINT, "INT"}, {syscall.SIGTERM, "TERM"}, {userSignal, "USR1"}}
