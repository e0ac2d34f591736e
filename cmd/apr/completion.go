package main

import (
	"context"
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
