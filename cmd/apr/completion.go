package main

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/cli"
)

// completionResult is the script of one shell.
type completionResult struct {
	Shell  string `json:"shell"`
	Script string `json:"script"`
}

// Text prints the script.
func (r completionResult) Text(p *cli.Page) { p.Raw(r.Script) }

func completionCommand() *cli.Command {
	var shell string
	return &cli.Command{
		Name: "completion", Short: "Print a shell completion script",
		Example: "apr completion bash > /etc/bash_completion.d/apr\nsource <(apr completion zsh)",
		Options: []cli.Option{{
			Name: "shell", Arg: true, Required: true, Value: cli.Enum(&shell, "", "bash", "zsh", "fish", "powershell"),
			Help: "bash, zsh, fish or powershell",
		}},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			var b strings.Builder
			if err := e.Completion(shell, &b); err != nil {
				return nil, err
			}
			return completionResult{shell, b.String()}, nil
		},
	}
}

// manifestFile is what makes a folder a run.
const manifestFile = "manifest.json"

// runNames completes the names of the runs in the folder --dir.
func runNames(s cli.Settings) []string {
	dir, _ := s.Value("dir").(string)
	return runsIn(dir)
}

// runPaths completes the directories of the runs in the folder where apr distill puts them.
func runPaths(cli.Settings) []string {
	dir := cmp.Or(os.Getenv("APR_RUNS_DIR"), "runs")
	names := runsIn(dir)
	for i := range names {
		names[i] = filepath.Join(dir, names[i])
	}
	return names
}

func runsIn(dir string) (names []string) {
	entries, _ := os.ReadDir(dir) // a folder that is not there has no runs
	for _, entry := range entries {
		if _, err := os.Stat(filepath.Join(dir, entry.Name(), manifestFile)); err == nil {
			names = append(names, entry.Name())
		}
	}
	return names
}
