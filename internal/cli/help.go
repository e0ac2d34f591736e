package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Help lists commands in the order of their table, not by the alphabet.
func init() { cobra.EnableCommandSorting = false }

// helpText is the result of --help --json.
type helpText struct {
	Help string `json:"help"`
}

// firstFlags divides the flags in the help of a command that names some of them first, in the order of its table.
func firstFlags(cc *cobra.Command) {
	names := strings.Fields(cc.Annotations["first"])
	if len(names) == 0 {
		return
	}
	first, others := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	first.SortFlags = false
	for _, name := range names {
		first.AddFlag(cc.Flags().Lookup(name))
	}
	cc.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(names, f.Name) {
			others.AddFlag(f)
		}
	})
	cc.Annotations["firstFlags"] = strings.TrimRight(first.FlagUsages(), "\n")
	cc.Annotations["otherFlags"] = strings.TrimRight(others.FlagUsages(), "\n")
}

// usageTemplate is cobra's, with the exit codes at the end.
const usageTemplate = `Usage:
  {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

{{with index .Annotations "firstFlags"}}First flags:
{{.}}

Other flags:
{{index $.Annotations "otherFlags"}}{{else}}Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{end}}{{if .HasAvailableInheritedFlags}}

Global flags:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{with index .Annotations "exits"}}

Exit codes{{if $.HasAvailableSubCommands}} of all of them; --help of each has its own{{end}}:
{{.}}{{end}}
`
