package cli

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"apr/internal/fault"
)

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
	if ours := a.foreign(cc, word); ours != "" {
		return err.WithHint("did you mean %q?", a.Name+" "+ours)
	}
	if n := fault.Nearest(word, names(cc)); n != "" {
		return err.WithHint("did you mean %q?", n)
	}
	if flag, owner := flagOf(cc, word); flag != "" {
		return err.WithHint("--%s is a flag of %q", flag, owner)
	}
	return err.WithHint("%s --help lists the commands", cc.CommandPath())
}

// foreign returns the command, without the program's name, that other programs call word; "" if there is none below cc.
func (a *App) foreign(cc *cobra.Command, word string) string {
	ours, group := a.Foreign[strings.ToLower(word)], strings.TrimPrefix(cc.CommandPath(), a.Name)
	if group = strings.TrimPrefix(group, " "); group != "" && !strings.HasPrefix(ours, group+" ") {
		return ""
	}
	return ours
}

// flagOf returns the first command below cc with a flag, or a configuration key, of this name.
func flagOf(cc *cobra.Command, word string) (flag, owner string) {
	name := spelled(word)
	for _, sub := range cc.Commands() {
		if sub.Hidden {
			continue
		}
		if f := sub.LocalFlags().Lookup(name); f != nil && !f.Hidden && f.Name != "help" {
			return f.Name, sub.CommandPath()
		}
	}
	return "", ""
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
	case errors.As(err, &invalid) && invalid.GetFlag().Name == "help":
		return fault.In(fault.Usage, "--help", "takes no value").
			WithHint("%s --help shows all flags", cc.CommandPath())
	case errors.As(err, &invalid):
		return placed(invalid.Unwrap(), "--"+invalid.GetFlag().Name, "")
	}
	return fault.New(fault.Usage, "%s", err.Error())
}

// longFlag is a word with one hyphen that may be meant as a long flag.
var longFlag = regexp.MustCompile(`^-([a-z][a-z0-9-]+)(=.*)?$`)

// oneHyphen refuses long flags with one hyphen, -student: they would be read as flags of one letter, some of which take
// the rest of the word for their value. A word behind a flag that waits for a value is that value.
func oneHyphen(root *cobra.Command, args []string) error {
	cc, _, err := root.Find(args)
	if err != nil {
		return nil // the command is unknown, which is told
	}
	find := func(name string) *pflag.Flag {
		return cmp.Or(cc.Flags().Lookup(name), cc.InheritedFlags().Lookup(name))
	}
	for i, arg := range args {
		if arg == "--" {
			return nil
		}
		m := longFlag.FindStringSubmatch(arg)
		if m == nil || find(m[1]) == nil {
			continue
		}
		if i > 0 && strings.HasPrefix(args[i-1], "-") && !strings.Contains(args[i-1], "=") {
			before := find(strings.TrimLeft(args[i-1], "-"))
			if short := strings.TrimPrefix(args[i-1], "-"); len(short) == 1 {
				before = cmp.Or(cc.Flags().ShorthandLookup(short), cc.InheritedFlags().ShorthandLookup(short))
			}
			if before != nil && before.NoOptDefVal == "" {
				continue
			}
		}
		return fault.New(fault.Usage, "unknown flag -%s", m[1]).
			WithHint("a flag of several letters has two hyphens: --%s", m[1])
	}
	return nil
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
	if word := spelled(name); slices.Contains(names(cc), word) {
		return err.WithHint("%s is a command: %s %s", word, cc.CommandPath(), word)
	} else if ours := a.foreign(cc, word); ours != "" && cc.HasSubCommands() {
		return err.WithHint("did you mean %q?", a.Name+" "+ours)
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
