package main

import (
	"context"
	"errors"

	"apr/device/cpu"
	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/selfcheck"
)

// openFor is open for work with these models. A Vulkan device computes a part of each, and of a small one all of
// it, beside the CPU in float32 first. One that differs is refused, a fault of kind Unavailable; auto takes the
// CPU then and says why.
func (b backend) openFor(ctx context.Context, e *cli.Env, models ...*modelfile.Files) (*opened, error) {
	return b.openAgreeing(ctx, e, func(agree func(model.Weights) error) error {
		for _, f := range models {
			if err := agree(f); err != nil {
				return err
			}
		}
		return nil
	})
}

// openForRun is openFor with the models that a distillation will open.
func (b backend) openForRun(ctx context.Context, e *cli.Env, c *distill.Config) (*opened, error) {
	paths := append([]string{c.Student}, c.Ensemble.More...)
	for _, r := range c.Ensemble.Routes {
		paths = append(paths, r.Model)
	}
	if c.FromCache == "" { // else it is not computed
		paths = append(paths, c.Teacher)
	}
	return b.openForPaths(ctx, e, c.AllowKeys, paths...)
}

// openForPaths is openFor with files that are not open yet. What is wrong with them is left to whoever opens
// them. Empty paths are none.
func (b backend) openForPaths(ctx context.Context, e *cli.Env, keys []string, paths ...string) (*opened, error) {
	return b.openAgreeing(ctx, e, func(agree func(model.Weights) error) error {
		seen := map[string]bool{"": true}
		for _, path := range paths {
			if seen[path] {
				continue
			}
			seen[path] = true
			f, err := modelfile.Open(path, keys...)
			if err != nil {
				continue
			}
			if err := errors.Join(agree(f), f.Close()); err != nil {
				return err
			}
		}
		return nil
	})
}

// openAgreeing opens the device and lets each call agree for each model.
func (b backend) openAgreeing(ctx context.Context, e *cli.Env,
	each func(agree func(model.Weights) error) error) (*opened, error) {
	o, err := b.open(e)
	if err != nil {
		return nil, err
	}
	b.guard.attend(o.Device)
	if o.Info().Kind != "vulkan" {
		return o, nil
	}
	err = each(func(w model.Weights) error { return o.agree(ctx, e, w) })
	if err == nil {
		return o, nil
	}
	err = errors.Join(err, o.Close())
	if b.name != "auto" || ctx.Err() != nil {
		return nil, err
	}
	e.Log.Warn("the GPU is not used: " + err.Error())
	own, cpuErr := b.cpu(e, "the GPU does not compute this model right")
	if cpuErr != nil {
		return nil, cpuErr
	}
	b.guard.attend(own.Device)
	own.tried = append(o.tried, "vulkan: "+err.Error())
	return own, nil
}

// agree compares the device with the CPU over a model. A model that cannot be compared, because its file is damaged or
// something of it is not computed or does not fit, is left to whoever loads it: that error says more.
func (o *opened) agree(ctx context.Context, e *cli.Env, w model.Weights) error {
	if model.Served(w.Arch(), o.Info()) != nil {
		return nil
	}
	host, err := cpu.New(cpu.Options{ISA: e.Getenv("APR_CPU")})
	if err != nil {
		return err
	}
	defer host.Close()
	a, err := selfcheck.Agree(ctx, o.Device, host, w)
	switch kind := fault.KindOf(err); {
	case err == nil:
		o.agreed = append(o.agreed, a)
		e.Log.Debug(o.Info().Name + ": " + a.String())
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case kind == fault.Unavailable, kind == fault.Inference, kind == fault.Hung:
		return err
	}
	return nil
}
