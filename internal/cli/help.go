package cli

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Help lists commands in the order of their table, not by the alphabet.
func init() { cobra.EnableCommandSorting = false }

// Topic is a subject of "apr help NAME": what several commands have in common.
type Topic struct {
	Name, Short string
	Text        string   // paragraphs, as in Command.Long; empty: the topic is the help of the command of its name
	Command     string   // the command whose flags the topic lists
	Groups      []string // the groups of these flags
}

// helpText is the text of --help, of a topic or of a manual page.
type helpText struct {
	Help string `json:"help"`
}

// Text prints the help.
func (h helpText) Text(p *Page) { p.Raw(h.Help) }

// helpPage is what help says of a command or a topic, before it is laid out for a terminal or as a manual page.
type helpPage struct {
	name, short, long, usage string
	examples                 []string
	sections                 []helpSection
}

// helpSection is a list of names with a text each. A note is a paragraph in its place.
type helpSection struct {
	title, note string
	rows        [][2]string
}

// Widths of help: without a terminal, at most, and of names that have their text on the same line.
const (
	helpWidth    = 80
	maxHelpWidth = 120
	maxNameWidth = 26
)

// helpWidth returns the columns that help may use.
func (p *Page) helpWidth() int {
	if p.width == 0 {
		return helpWidth
	}
	return min(p.width, maxHelpWidth)
}

// showHelp makes the help of a command the result of the call.
func (a *App) showHelp(cc *cobra.Command) {
	a.result = helpText{a.helpOf(cc).text(a.page.helpWidth())}
}

// helpOf returns the help of a command.
func (a *App) helpOf(cc *cobra.Command) *helpPage {
	c := a.made[cc]
	h := &helpPage{name: cc.CommandPath(), short: cc.Short, long: cmp.Or(cc.Long, cc.Short), usage: cc.UseLine()}
	if cc.Example != "" {
		h.examples = strings.Split(strings.TrimSpace(cc.Example), "\n")
	}
	if cc.HasAvailableSubCommands() {
		commands := helpSection{title: "Commands"}
		for _, s := range cc.Commands() {
			if s.IsAvailableCommand() {
				commands.rows = append(commands.rows, [2]string{s.Name(), s.Short})
			}
		}
		h.sections = append(h.sections, commands)
	}
	if !cc.HasParent() && len(a.Topics) > 0 {
		h.sections = append(h.sections, a.topicSection())
	}
	if c != nil {
		h.sections = append(h.sections, c.flagSections()...)
	}
	global := flagSection("Global flags", a.globals)
	global.rows = append(global.rows, [2]string{"-h, --help", "print this help"})
	exits := helpSection{title: "Exit codes"}
	if cc.HasAvailableSubCommands() {
		exits.title += " of all of them; --help of each has its own"
	}
	if c == nil {
		c = &Command{Sub: a.Commands}
	}
	exits.rows = exitRows(c.ExitCodes(), c.resumes())
	h.sections = append(h.sections, global, exits)
	return h
}

// flagSections are the flags of a command that its help lists: those that come first, then group by group in the order of the table,
// then where to find those that another command's help lists.
func (c *Command) flagSections() (all []helpSection) {
	listed := slices.DeleteFunc(slices.Clone(c.Options), func(o Option) bool { return o.Arg && !o.Flag || !o.listed() })
	first := slices.DeleteFunc(slices.Clone(listed), func(o Option) bool { return !o.First || o.ListedBy != "" })
	var elsewhere string
	var groups []string
	byGroup := map[string][]Option{}
	for _, o := range listed {
		switch {
		case o.ListedBy != "":
			elsewhere = o.ListedBy
		case !o.First:
			if _, known := byGroup[o.Group]; !known {
				groups = append(groups, o.Group)
			}
			byGroup[o.Group] = append(byGroup[o.Group], o)
		}
	}
	if len(first) > 0 {
		all = append(all, flagSection("First flags", first))
	}
	for _, g := range groups {
		title := cmp.Or(g, "Flags")
		if g == "" && len(first) > 0 {
			title = "Other flags"
		}
		all = append(all, flagSection(title, byGroup[g]))
	}
	if elsewhere != "" {
		all = append(all, helpSection{title: "Flags of " + elsewhere, note: "All flags of " + elsewhere + " are taken too: " + elsewhere + " --help lists them."})
	}
	return all
}

func flagSection(title string, opts []Option) helpSection {
	s := helpSection{title: title}
	for i := range opts {
		left, text := opts[i].usage()
		s.rows = append(s.rows, [2]string{left, text})
	}
	return s
}

// topicSection lists the topics.
func (a *App) topicSection() helpSection {
	s := helpSection{title: "Topics (" + a.Name + " help TOPIC)"}
	for _, t := range a.Topics {
		s.rows = append(s.rows, [2]string{t.Name, t.Short})
	}
	return s
}

// topicHelp returns the help of a topic: its text, and the flags that it is about.
func (a *App) topicHelp(t *Topic) *helpPage {
	h := &helpPage{name: a.Name + " " + t.Name, short: t.Short, long: t.Text}
	for _, c := range a.Commands {
		if c.Name != t.Command {
			continue
		}
		for _, g := range t.Groups {
			opts := slices.DeleteFunc(slices.Clone(c.Options), func(o Option) bool { return o.Group != g || o.Arg && !o.Flag || !o.listed() })
			h.sections = append(h.sections, flagSection(a.Name+" "+c.Name+": "+strings.ToLower(g), opts))
		}
	}
	return h
}

// helpCommand is "apr help": of a command, of a topic, and as a manual page.
func (a *App) helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND|TOPIC|man [COMMAND]]", Short: "Help about a command or a topic", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return append(names(root), a.topicNames()...), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := a.environment(); err != nil {
				return err
			}
			man := len(args) > 0 && args[0] == "man"
			if man {
				args = args[1:]
			}
			h, err := a.helpAbout(root, args)
			if err != nil {
				return err
			}
			if man {
				a.result = helpText{h.man()}
			} else {
				a.result = helpText{h.text(a.page.helpWidth())}
			}
			return nil
		},
	}
}

// helpAbout returns the help of the command or topic that words name.
func (a *App) helpAbout(root *cobra.Command, words []string) (*helpPage, error) {
	if slices.Equal(words, []string{"topics"}) {
		return &helpPage{name: a.Name + " topics", short: "Topics of the help", long: "What several commands have in common.", sections: []helpSection{a.topicSection()}}, nil
	}
	i := slices.IndexFunc(a.Topics, func(t Topic) bool { return t.Text != "" && slices.Equal(words, []string{t.Name}) })
	if i >= 0 {
		return a.topicHelp(&a.Topics[i]), nil
	}
	target, rest, err := root.Find(words)
	if err != nil || len(rest) > 0 {
		return nil, a.unknownCommand(target, rest[0])
	}
	return a.helpOf(target), nil
}

func (a *App) topicNames() (all []string) {
	for _, t := range a.Topics {
		all = append(all, t.Name)
	}
	return all
}

// text lays the help out in `width` columns.
func (h *helpPage) text(width int) string {
	var b strings.Builder
	for _, line := range paragraphs(h.long) {
		wrap(&b, line, width)
	}
	if h.usage != "" {
		b.WriteString("\nUsage:\n")
		wrap(&b, "  "+h.usage, width)
	}
	if len(h.examples) > 0 {
		b.WriteString("\nExamples:\n")
		for _, line := range h.examples {
			wrapCommand(&b, strings.TrimSpace(line), width)
		}
	}
	for _, s := range h.sections {
		b.WriteString("\n" + s.title + ":\n")
		s.text(&b, width)
	}
	return b.String()
}

// text lays a list out: each text beside its name, or below a name that is long.
func (s *helpSection) text(b *strings.Builder, width int) {
	if s.note != "" {
		wrap(b, "  "+s.note, width)
	}
	names := 0
	for _, row := range s.rows {
		if n := utf8.RuneCountInString(row[0]); n <= maxNameWidth {
			names = max(names, n)
		}
	}
	for _, row := range s.rows {
		left, n := "  "+row[0], utf8.RuneCountInString(row[0])
		if n > names {
			b.WriteString(left + "\n")
			left, n = "  ", 0
		}
		fill(b, left+strings.Repeat(" ", names-n+2), names+4, strings.Fields(row[1]), width)
	}
}

// paragraphs returns text as lines to be wrapped: hand-made breaks are undone, an indented line and an empty one stay their own.
func paragraphs(text string) (lines []string) {
	open := false
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		plain := line != "" && line[0] != ' '
		if plain && open {
			lines[len(lines)-1] += " " + line
		} else {
			lines = append(lines, line)
		}
		open = plain
	}
	return lines
}

// wrap writes one line of a paragraph. What follows of an indented line starts below its text: behind the first double blank, if any.
func wrap(b *strings.Builder, line string, width int) {
	body := strings.TrimLeft(line, " ")
	start := len(line) - len(body)
	left, column := line[:start], start
	if i := strings.Index(body, "  "); i >= 0 && start > 0 {
		text := strings.TrimLeft(body[i:], " ")
		left = line[:len(line)-len(text)]
		column, body = utf8.RuneCountInString(left), text
	}
	fill(b, left, column, strings.Fields(body), width)
}

// fill writes words behind left, in lines that start at a column and end before width.
func fill(b *strings.Builder, left string, column int, words []string, width int) {
	line, empty := left, true
	for _, w := range words {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(w) > width {
			b.WriteString(line + "\n")
			line, empty = strings.Repeat(" ", column), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+w, false
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// wrapCommand writes a command so that it can be copied: a long one is continued behind a backslash, before a flag.
func wrapCommand(b *strings.Builder, command string, width int) {
	line, rest := "  ", strings.Split(command, " -")
	for i, part := range rest {
		if i > 0 {
			part = "-" + part
			if utf8.RuneCountInString(line+" "+part)+2 > width {
				b.WriteString(line + " \\\n")
				line = "   "
			}
			part = " " + part
		}
		line += part
	}
	b.WriteString(line + "\n")
}

// man returns the help as a manual page in roff, for man -l.
func (h *helpPage) man() string {
	var b strings.Builder
	name := strings.ReplaceAll(h.name, " ", "-")
	b.WriteString(".TH " + strings.ToUpper(roff(name)) + " 1\n.SH NAME\n" + roff(name+" - "+h.short) + "\n")
	if h.usage != "" {
		b.WriteString(".SH SYNOPSIS\n" + roff(h.usage) + "\n")
	}
	b.WriteString(".SH DESCRIPTION\n")
	for i, line := range paragraphs(h.long) {
		switch {
		case line == "":
			b.WriteString(".PP\n")
		case i > 0:
			b.WriteString(".br\n" + roff(line) + "\n")
		default:
			b.WriteString(roff(line) + "\n")
		}
	}
	for _, s := range h.sections {
		b.WriteString(".SH " + strings.ToUpper(roff(s.title)) + "\n" + roff(s.note))
		for _, row := range s.rows {
			b.WriteString(".TP\n.B " + roff(row[0]) + "\n" + roff(row[1]) + "\n")
		}
	}
	if len(h.examples) > 0 {
		b.WriteString(".SH EXAMPLES\n.nf\n" + roff(strings.Join(h.examples, "\n")) + "\n.fi\n")
	}
	return b.String()
}

// roff escapes text for a manual page: backslashes, hyphens, and what would be a request at the start of a line.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
