package main

import (
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/launcher"
)

// rank asks the environment whether this process is one of several, for a command whose copies would write the same files. It
// goes on only if it is the only one, and says who said so.
func rank(e *cli.Env) (launcher.Place, error) {
	p, err := launcher.Check(e.Getenv)
	switch {
	case err != nil:
	case p.By != "":
		e.Log.Info("launcher: " + p.String())
	case len(p.Found) > 0:
		e.Log.Debug("variables of a launcher are set, but it did not start this process as a rank", "found", p.Found)
	}
	return p, err
}

// recordRank writes down what made this process a run of its own, if a launcher had a say.
func recordRank(r *distill.Run, p launcher.Place) error {
	if len(p.Found) == 0 {
		return nil
	}
	return r.Decision("launcher", map[string]any{"rank": p.Rank, "world_size": p.World, "by": p.By, "found": p.Found}, p.String())
}
