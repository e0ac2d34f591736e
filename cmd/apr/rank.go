package main

import (
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/launcher"
)

// standing is the rank of this process, and what looks like an unknown launcher.
type standing struct {
	launcher.Place
	alike []launcher.Alike
}

// rank asks the environment whether this process is one of several, for a command whose copies would write the same
// files. It goes on only if it is the only one, and says who said so, and what casts doubt on it.
func rank(e *cli.Env) (standing, error) {
	p, err := launcher.Check(e.Getenv)
	s := standing{Place: p}
	if err != nil {
		return s, err
	}
	switch {
	case p.By != "":
		e.Log.Info("launcher: " + p.String())
	case len(p.Found) > 0:
		e.Log.Debug("variables of a launcher are set, but it did not start this process as a rank", "found", p.Found)
	}
	for _, note := range p.Notes {
		e.Log.Warn(note)
	}
	s.alike = launcher.FindAlike(e.Environ())
	for _, a := range s.alike {
		e.Log.Warn(a.String())
	}
	return s, nil
}

// alone refuses a command whose copies would write the same files, unless this process is the only one.
func alone(e *cli.Env) error {
	_, err := rank(e)
	return err
}

// recordRank writes down what made this process a run of its own, if a launcher had a say, and what was warned of.
func recordRank(r *distill.Run, s standing) error {
	for _, note := range s.Notes {
		if err := r.Warning("launcher", map[string]any{"found": s.Found}, note); err != nil {
			return err
		}
	}
	for _, a := range s.alike {
		if err := r.Warning("launcher", a, a.String()); err != nil {
			return err
		}
	}
	if len(s.Found) == 0 {
		return nil
	}
	return r.Decision("launcher", map[string]any{"rank": s.Rank, "world_size": s.World, "by": s.By, "found": s.Found}, s.String())
}
