package distill

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"apr/collective"
	"apr/device"
	"apr/internal/contracttest"
	"apr/run/watch"
	"apr/teacher"
)

// slowPasser is a stream whose work takes so long before something was passed, and after it.
type slowPasser struct {
	device.Passer
	body, received time.Duration
	passed         bool
}

func (s *slowPasser) Pass(int, device.Tensor)  { s.passed = true }
func (s *slowPasser) Release(...device.Tensor) {}

func (s *slowPasser) Wait(context.Context) (device.Scalars, error) {
	if s.passed {
		time.Sleep(s.received)
	} else {
		time.Sleep(s.body)
	}
	return device.Scalars{}, nil
}

// stallOf runs do beside a watchdog with its usual limits, in time that passes by itself, and returns what the watchdog
// took for a hang; empty: nothing.
func stallOf(t *testing.T, do func(dog *watch.Watchdog)) (doing string) {
	synctest.Test(t, func(*testing.T) {
		dog := watch.Start(watch.Options{Stalled: func(r watch.Report) { doing = r.Doing }})
		do(dog)
		dog.Close()
		synctest.Wait()
	})
	return doing
}

// The watchdog of a teaching rank lets the learning rank take its time to receive, and ends a body that takes as long.
func TestTeacherWaitsForItsPupil(t *testing.T) {
	for _, k := range []struct {
		body, received time.Duration
		hangs          bool
	}{{0, time.Hour, false}, {time.Hour, 0, true}} {
		contracttest.Cases(t, 1)
		doing := stallOf(t, func(dog *watch.Watchdog) {
			dog.Doing("lesson 0")
			l := &lecturer{stream: &slowPasser{body: k.body, received: k.received}, teacher: &teacher.Resident{}}
			if err := l.pass(0, dog); err != nil {
				t.Error(err)
			}
		})
		if (doing != "") != k.hangs || k.hangs && doing != "lesson 0" {
			t.Errorf("a body of %v, received after %v: a hang in %q", k.body, k.received, doing)
		}
	}
}

// lonely is a device whose pairs take an hour.
type lonely struct{ device.Device }

func (lonely) CanJoin() error               { return nil }
func (lonely) GroupID() ([]byte, error)     { return make([]byte, device.GroupIDBytes), nil }
func (lonely) Part(error)                   {}
func (lonely) Pair(int, bool, []byte) error { time.Sleep(time.Hour); return nil }

// Ranks that have met are watched while their devices join: one that waits there for a rank that is gone is a hang, and
// one that waits for the others to come is none.
func TestJoiningDevicesIsWatched(t *testing.T) {
	contracttest.Cases(t, 1)
	c := shortData(t, ranksConfig(t))
	c.Ranks = Group{Rank: 1, World: 1, Teachers: 1}
	dev := newCPU(t)
	in, err := openInputs(context.Background(), c, dev, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	doing := stallOf(t, func(dog *watch.Watchdog) {
		r := &Run{Config: c, dev: lonely{dev}, in: in, obs: &quiet{}}
		r.Watch = dog
		r.Config.Ranks.Join = func(context.Context, []collective.Field) (collective.Comm, error) {
			time.Sleep(time.Hour + time.Second/2) // no tick of what keeps the watchdog quiet
			return collective.Local(2)[1], nil
		}
		if err := r.meet(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if doing != "a message to another rank" { // the last thing that is done before
		t.Errorf("a hang in %q", doing)
	}
}
