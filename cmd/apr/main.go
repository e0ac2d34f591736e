// Command apr distils large language models: a big frozen teacher teaches a small student, on a CPU or on NVIDIA
// GPUs. Each command has one file here that declares its flags, calls the room that does the work, and prints what it
// returned; nothing else lives here.
package main

import (
	"io"
	"os"
	"slices"

	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/supervise"
)

// commands makes the command table, in the order of apr --help.
var commands = []func() *cli.Command{
	distillCommand, pruneCommand, planCommand, cacheCommand, teachCommand, dispatchCommand, runsCommand, pullCommand,
	runCommand, serveCommand, evalCommand,
	exportCommand, quantizeCommand, convertCommand, importCommand, inspectCommand, tensorsCommand, validateCommand, diffCommand, tokenizeCommand,
	verifyCommand, checkCommand, contractCommand, benchCommand, doctorCommand, gpuCommand, versionCommand, completionCommand,
}

// foreignCommands are what ollama, axolotl, TRL and others call what a command does here.
var foreignCommands = map[string]string{
	"train": "distill", "sft": "distill", "finetune": "distill", "fine-tune": "distill", "kd": "distill", "gkd": "distill", "fit": "distill", "distillation": "distill", "start": "distill",
	"chat": "run MODEL --chat", "generate": "run", "complete": "run", "infer": "run", "inference": "run", "predict": "run", "ask": "run",
	"list": "runs list", "ls": "runs list", "ps": "runs list --status running", "logs": "runs tail", "log": "runs tail", "tail": "runs tail", "status": "runs list",
	"watch": "runs tail", "follow": "runs tail",
	"compare": "runs compare", "report": "runs report", "history": "runs list", "diagnose": "runs diagnose",
	"resume": "runs resume RUN", "stop": "runs stop RUN", "kill": "runs stop RUN", "rm": "runs rm RUN", "ui": "runs serve", "dashboard": "runs serve", "web": "runs serve",
	"download": "pull", "get": "pull", "fetch": "pull", "evaluate": "eval", "score": "eval", "test": "eval", "perplexity": "eval", "show": "inspect", "info": "inspect", "cat": "tensors",
	"quantise": "quantize", "merge": "export", "save": "export", "create": "export", "gguf": "export", "env": "doctor", "devices": "gpu", "gpus": "gpu", "nvidia-smi": "gpu",
	"benchmark": "bench", "submit": "dispatch", "launch": "dispatch", "sbatch": "dispatch", "estimate": "plan", "topics": "help topics",
}

// openExits are the exit codes of every command that opens a model, and reads it until a signal stops it.
var openExits = slices.Clip([]fault.Kind{fault.NotFound, fault.Format, fault.Load, fault.IO, fault.Unavailable, fault.Network, fault.HTTP404, fault.UnsafePath, fault.Stopped})

func main() {
	var names []string
	for _, c := range commands {
		names = append(names, c().Name)
	}
	cli.CalledAs(os.Args[0], names)
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}

// run is the whole program: it returns the exit code.
func run(args []string, in io.Reader, out, errw io.Writer, environ []string) int {
	app := &cli.App{
		Name: "apr", Short: "Distil large language models",
		Long: "apr distils large language models: a big frozen teacher teaches a small student. It trains, evaluates and\n" +
			"generates, and looks into, converts and quantises model files. Start with apr distill --help.",
		In: in, Out: out, Err: errw, Environ: environ, Supervised: os.Getenv(supervise.Variable) != "",
	}
	app.Foreign, app.Topics = foreignCommands, topics
	for _, c := range commands {
		app.Commands = append(app.Commands, c())
	}
	return app.Main(args)
}
