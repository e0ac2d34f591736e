// Package cli is the common half of every command: flags, configuration, JSON output, exit codes, logs, tables and
// progress. A command states what it is in one [Command] value; the package makes the flags, the help, the
// configuration keys, the environment variables and the JSON schema from it, so that each option is stated once.
//
// # Declaring a command
//
//	func benchCommand() *cli.Command {
//		var o struct {
//			file  string
//			alpha float64
//			dtype string
//			data  []string
//		}
//		return &cli.Command{
//			Name: "bench", Short: "Measure a model", Example: "apr bench model.apr",
//			Exits: []fault.Kind{fault.Inference},
//			Options: []cli.Option{
//				{Name: "file", Arg: true, Required: true, Path: true, Value: cli.String(&o.file, ""), Help: "model"},
//				{Name: "alpha", Value: cli.Float(&o.alpha, 0.5).In(0, 1), Help: "weight of the KL term"},
//				{Name: "dtype", Value: cli.Enum(&o.dtype, "auto", "auto", "f32", "bf16"), Env: "APR_DTYPE", Help: "…"},
//				{Name: "data", Short: "d", Path: true, Value: cli.Strings(&o.data), Help: "data, repeatable"},
//			},
//			Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { … },
//		}
//	}
//
// Before Run is called every option holds its merged value: flag > environment > configuration file > default.
// e.Settings tells the value and origin of each ({value, origin}: "flag", "env NAME", "config FILE:LINE",
// "default"); e.Settings.Given(name) whether somebody chose it.
//
// Run returns the result, printed as text by its Text method or, with --json, as one object made of its JSON fields
// and the envelope (schema, status, exit_code, error). It may return a result and an error: both are shown.
// Everything else a command says goes to e.Log or a progress bar, both on stderr.
//
// What is not built yet: Option.NotBuilt for a whole option, EnumValue.Unbuilt for a value; using it is exit 9, and help
// does not offer it.
//
// Help, topics (App.Topics) and manual pages are laid out from the same tables. Option.First puts a flag at the head of the
// help, Option.Group under a title, and Option.ListedBy leaves it to the help of another command. Option.Foreign and
// App.Foreign are names of other programs: they are unknown here, and the error names ours.
//
// # Caveats
//
// Values are parsed strictly: decimal integers, decimal floating point, no "inf" or "nan", no surrounding blanks.
// An empty environment variable is as if unset. A configuration file may hold each key once. The first INT, TERM,
// USR1 or HUP cancels Run's context; the second ends the process with 128 + the signal's number.
package cli
