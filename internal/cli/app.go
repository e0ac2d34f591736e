package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"apr/internal/fault"
)

// App is one call of the program.
type App struct {
	Name, Short, Long string
	In                io.Reader
	Out, Err          io.Writer
	Environ           []string
	Commands          []*Command
	Topics            []Topic
	Foreign           map[string]string // commands of other programs, with what the user should call instead
	Supervised        bool              // a supervisor passes signals on, so that they come twice

	args    []string
	env     map[string]string
	globals []Option
	page    *Page
	out     *bufio.Writer
	screen  *screen // of stderr; nil: it is no terminal
	result  any
	tree    *cobra.Command
	made    map[*cobra.Command]*Command // of the tree, but for its root
	instead string                      // command run in place of the one named, for --version

	ending   atomic.Pointer[func(os.Signal)] // of Env.Ending
	take     atomic.Pointer[func() bool]     // of Env.Interrupts
	unparsed bool                            // the command line holds a flag that could not be parsed, and those after it were not

	json, quiet, verbose, noProgress, offline, version bool
	color, logFormat, config                           string
	allowKeys                                          []string
}

// globalTable is the option table of the flags every command has.
func (a *App) globalTable() []Option {
	return []Option{
		{Name: "json", Value: Bool(&a.json, false), Help: "print exactly one JSON object on stdout"},
		{Name: "quiet", Short: "q", Value: Bool(&a.quiet, false), Help: "errors only"},
		{Name: "verbose", Short: "v", Value: Bool(&a.verbose, false), Help: "debug log"},
		{Name: "no-progress", Value: Bool(&a.noProgress, !isTerminal(a.Err)), Default: "only where stderr is no terminal", Help: "show no progress"},
		{Name: "color", Value: Enum(&a.color, "auto", "auto", "always", "never"), Help: "colours"},
		{Name: "log-format", Value: Enum(&a.logFormat, "", "text", "json"), Default: "text on a terminal", Help: "format of the log on stderr"},
		{Name: "offline", Value: Bool(&a.offline, false), Env: "APR_OFFLINE", Help: "no network"},
		a.allowOption(),
		{Name: "config", Path: true, Value: String(&a.config, ""), Help: "YAML file of options; its paths are relative to it"},
		{Name: "version", Value: Bool(&a.version, false), Help: "print the version"},
	}
}

// shared are the flags of every command that may stand in a configuration file too, and that belong to what was asked: models are
// read by them.
func (a *App) shared() []Option {
	return slices.DeleteFunc(slices.Clone(a.globals), func(o Option) bool { return o.Name != AllowConfigKey })
}

func (a *App) allowOption() Option {
	return Option{Name: AllowConfigKey, Value: Strings(&a.allowKeys), Help: "accept this unknown key of a model's config.json without reading it; repeatable"}
}

// AllowConfigKey is the flag of Env.AllowConfigKeys.
const AllowConfigKey = "allow-config-key"

// Main runs the program with args (without the program's name) and returns its exit code.
func (a *App) Main(args []string) (code int) {
	a.args, a.env = args, envMap(a.Environ)
	a.out = bufio.NewWriterSize(a.Out, 1<<16)
	a.page = newPage(a.out, a.Out, a.env)
	root := a.root()
	a.tree = root
	root.SetArgs(args)
	ctx, stop := a.signals()
	defer stop()

	command := a.Name
	err := a.guard(func() error {
		if err := oneHyphen(root, args); err != nil {
			a.unparsed = true
			return err
		}
		cc, err := root.ExecuteContextC(ctx)
		if names := strings.Fields(cc.CommandPath()); len(names) > 1 {
			command = names[1]
		}
		if a.instead != "" {
			command = a.instead
		}
		return err
	})
	return a.finish(command, stopped(ctx, err))
}

// root builds the cobra tree.
func (a *App) root() *cobra.Command {
	root := &cobra.Command{
		Use: a.Name + " COMMAND", Short: a.Short, Long: a.Long, Args: cobra.ArbitraryArgs, RunE: a.group,
		SilenceErrors: true, SilenceUsage: true, DisableFlagsInUseLine: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(a.In)
	root.SetOut(a.out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(a.flagError)
	a.globals, a.made = a.globalTable(), map[*cobra.Command]*Command{}
	for i := range a.globals {
		a.globals[i].register(root.PersistentFlags())
	}
	for _, c := range a.Commands {
		root.AddCommand(c.cobra(a, nil))
	}
	root.SetHelpCommand(a.helpCommand(root))
	root.SetHelpFunc(func(cc *cobra.Command, _ []string) { a.showHelp(cc) })
	return root
}

// wantsJSON reports --json, also when the flags could not be merged, or not even be parsed. A value that is neither true nor
// false is an error, and whoever wrote it reads JSON. After a usage error the word counts wherever it stands: a flag that lacks its
// value has taken it for one.
func (a *App) wantsJSON(err error) bool {
	if a.json {
		return true
	}
	given := a.globals[0].given // of --json, in order; complete unless a flag could not be parsed
	if a.unparsed || fault.KindOf(err) == fault.Usage {
		given = nil
		for _, s := range a.args {
			if s == "--" {
				break
			}
			if s == "--json" {
				given = append(given, "true")
			} else if v, ok := strings.CutPrefix(s, "--json="); ok {
				given = append(given, v)
			}
		}
	}
	if len(given) == 0 {
		return false
	}
	want := true
	bad := (&boolValue{p: &want}).set(given[len(given)-1])
	return want || bad != nil
}

// environment merges the global flags and makes what a command works with.
func (a *App) environment() (*Env, error) {
	if _, err := merge(a.globals, nil, a.env); err != nil {
		return nil, err
	}
	if a.quiet && a.verbose {
		return nil, fault.New(fault.Usage, "--quiet and --verbose contradict each other")
	}
	switch v := a.env["HF_HUB_OFFLINE"]; strings.ToLower(v) {
	case "1", "on", "yes", "true":
		a.offline = true
	case "", "0", "off", "no", "false":
	default:
		return nil, fault.In(fault.Usage, "HF_HUB_OFFLINE", "%q is neither 1, on, yes, true nor 0, off, no, false", v)
	}
	a.page.color = wantsColor(a.color, a.Out, a.env)
	if a.screen == nil && isTerminal(a.Err) {
		a.screen = &screen{w: a.Err}
	}
	e := &Env{
		In: a.In, Out: a.out, Err: textWriter{a.stderr()}, JSON: a.json, Quiet: a.quiet, Verbose: a.verbose, Offline: a.offline, AllowConfigKeys: a.allowKeys,
		Log: a.logger(), Command: append([]string{a.Name}, a.args...), env: a.env, app: a, screen: a.screen, jsonLog: a.logsJSON(),
	}
	if a.json { // stdout is for the one object
		e.Out, a.page.w = io.Discard, io.Discard
	}
	switch {
	case a.quiet || a.noProgress && a.refusesProgress():
	case a.noProgress:
		e.progress = progressLogged
	case isTerminal(a.Err):
		e.progress = progressBars
	default:
		e.progress = progressLines
	}
	return e, nil
}

// refusesProgress reports whether --no-progress was given, which is also the default where stderr is no terminal.
func (a *App) refusesProgress() bool {
	return slices.ContainsFunc(a.globals, func(o Option) bool { return o.Name == "no-progress" && len(o.given) > 0 })
}

// stderr is where all text for people goes while a command runs.
func (a *App) stderr() io.Writer {
	if a.screen != nil {
		return a.screen
	}
	return a.Err
}

// logsJSON reports whether lines of the log are JSON.
func (a *App) logsJSON() bool {
	return a.logFormat == "json" || a.logFormat == "" && !isTerminal(a.Err)
}

// logger makes the log on stderr.
func (a *App) logger() *slog.Logger {
	level := slog.LevelInfo
	switch {
	case a.quiet:
		level = slog.LevelError
	case a.verbose:
		level = slog.LevelDebug
	}
	if a.logsJSON() {
		o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, at slog.Attr) slog.Attr {
			if at.Key == slog.MessageKey {
				at.Value = slog.StringValue(AsCalled(at.Value.String()))
			}
			return at
		}}
		return slog.New(slog.NewJSONHandler(jsonWriter{a.stderr()}, o))
	}
	return slog.New(plainHandler{Handler: tint.NewTextHandler(a.stderr(), &tint.Options{
		Level: level, TimeFormat: time.TimeOnly, NoColor: !wantsColor(a.color, a.Err, a.env),
	})})
}

// callNamed runs another command of the program without arguments.
func (a *App) callNamed(ctx context.Context, name string) error {
	for _, c := range a.Commands {
		if c.Name == name {
			a.instead = name
			return a.call(ctx, c, nil)
		}
	}
	panic("cli: no command " + name)
}

// guard runs f and turns a panic into an error that asks for a report.
func (a *App) guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if a.verbose {
				fmt.Fprintf(textWriter{a.Err}, "%s\n", debug.Stack())
			}
			err = fault.New(fault.Other, "internal error: %v", r).
				WithHint("this is a defect of %s: please report it with the command line; --verbose shows the stack", a.Name)
		}
	}()
	return f()
}

// finish prints the result and the error and returns the exit code.
func (a *App) finish(command string, err error) int {
	if exit := (*Exit)(nil); errors.As(err, &exit) {
		if exit.Err != nil {
			a.finish(command, exit.Err)
		}
		return exit.Code
	}
	if a.wantsJSON(err) {
		data, jerr := envelope(command, a.result, err)
		if jerr != nil {
			err = fault.New(fault.Other, "internal error: the result cannot be written as JSON: %v", jerr)
			data, _ = envelope(command, nil, err) // an error object of strings always encodes
		}
		a.out.Reset(a.Out)
		_, _ = a.out.Write(append(jsonText(data), '\n')) // the writer keeps its error until Flush
	} else if r, ok := a.result.(Result); ok && !(a.quiet && ofFiles(r)) {
		if terr := a.guard(func() error { r.Text(a.page); return nil }); terr != nil && err == nil {
			err = terr
		}
	}
	if werr := a.out.Flush(); werr != nil && err == nil {
		err = fault.In(fault.IO, "stdout", "cannot write the result").Because(werr)
	}
	a.complain(err)
	return fault.ExitCode(err)
}

// FilesResult is the result of a command whose work is files: with --quiet, nothing is printed of it.
type FilesResult interface {
	Result
	OfFiles()
}

func ofFiles(r Result) bool { _, ok := r.(FilesResult); return ok }

// complain prints err on stderr.
func (a *App) complain(err error) {
	if err == nil {
		return
	}
	e := describeError(err)
	if a.logFormat == "json" {
		attrs := []any{"kind", e.Kind}
		if e.Hint != nil {
			attrs = append(attrs, "hint", *e.Hint)
		}
		level := slog.LevelError
		if fault.KindOf(err) == fault.Stopped {
			level = slog.LevelInfo
		}
		slog.New(slog.NewJSONHandler(jsonWriter{a.Err}, nil)).Log(context.Background(), level, e.Message, attrs...)
		return
	}
	out := textWriter{a.Err}
	if lines := messages(err); len(lines) == 1 && fault.KindOf(err) == fault.Stopped { // somebody wanted that
		fmt.Fprintf(out, "%s: %s\n", a.Name, Escape(stopText(lines[0], e.Hint)))
		return
	}
	said := map[string]bool{} // of several files that one full disk kept from being written, each reports the same
	for _, line := range messages(err) {
		if said[line] {
			continue
		}
		said[line] = true
		fmt.Fprintf(out, "%s: error: %s\n", a.Name, Escape(line))
	}
	if e.Hint != nil { // the table of a plan has several lines; none of them can pass for a line of the program's own
		fmt.Fprintf(out, "  hint: %s\n", strings.ReplaceAll(*e.Hint, "\n", "\n  "))
	}
}

// stopText is what is said of a command that a signal has stopped, with the way to go on.
func stopText(message string, hint *string) string {
	if hint == nil {
		return message
	}
	return message + "; " + *hint
}

// messages returns the text of err, one for each error that was joined.
func messages(err error) (all []string) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []string{AsCalled(err.Error())}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, messages(e)...)
	}
	if strings.Join(all, "\n") != AsCalled(err.Error()) { // fmt.Errorf with several %w
		return []string{AsCalled(err.Error())}
	}
	return all
}

// signalError is the cause of a context cancelled by a signal.
type signalError struct{ sig os.Signal }

func (e signalError) Error() string {
	for _, s := range namedSignals {
		if e.sig == s.signal {
			return "stopped by signal " + s.name
		}
	}
	return "stopped by signal " + e.sig.String()
}

// How long a repeated signal counts as the first one. timeout(1) signals its child and then the child's group, so that the child
// gets two within microseconds, or some milliseconds on a busy machine. No person presses Ctrl-C twice on purpose in a tenth of a
// second, and a key that is held down repeats later than that. A supervisor passes on what the terminal or a scheduler tells
// all processes of a job, and may be slow.
const (
	sameSignal       = 100 * time.Millisecond
	sameSignalPassed = time.Second
)

// SecondSignal is how long after the first signal another one ends any command at once.
const SecondSignal = sameSignalPassed + sameSignal

// heeded are the signals that ask this process to stop: stopSignals, and hangup unless nohup(1) had it ignored.
func heeded() []os.Signal {
	if hangup == 0 || signal.Ignored(hangup) {
		return stopSignals
	}
	return append(slices.Clone(stopSignals), hangup)
}

// signals returns a context that the first of the heeded signals cancels; a second one, later than the same one
// repeated, ends the process at once, unless it is hangup.
func (a *App) signals() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 2)
	done := make(chan struct{})
	signal.Notify(ch, heeded()...)
	go func() {
		for ctx.Err() == nil {
			select {
			case s := <-ch:
				if !a.taken(s) {
					cancel(signalError{s})
				}
			case <-done:
				return
			}
		}
		same := time.Now().Add(sameSignal)
		if a.Supervised {
			same = time.Now().Add(sameSignalPassed)
		}
		for {
			select {
			case s := <-ch:
				if time.Now().After(same) && s != hangup {
					a.lastWords(s)
					os.Exit(128 + int(s.(syscall.Signal)))
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() { signal.Stop(ch); close(done); cancel(nil) }
}

// stopped turns a bare cancellation by a signal into its exit code.
func stopped(ctx context.Context, err error) error {
	var sig signalError
	if errors.Is(err, context.Canceled) && fault.KindOf(err) == fault.Other && errors.As(context.Cause(ctx), &sig) {
		return fault.New(fault.Stopped, "%s", sig.Error())
	}
	return err
}

// Completion writes the completion script of the whole program for shell.
func (e *Env) Completion(shell string, w io.Writer) error {
	root := e.app.tree
	switch shell {
	case "bash":
		return root.GenBashCompletionV2(w, true)
	case "zsh":
		return root.GenZshCompletion(w)
	case "fish":
		return root.GenFishCompletion(w, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(w)
	}
	return fault.New(fault.Usage, "unknown shell %q", shell)
}
