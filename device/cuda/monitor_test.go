package cuda

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMonitor: it asks at once and then every period, until it is closed.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		m := watch(time.Second, func() func() Activity {
			return func() Activity { asked++; return Activity{Utilisation: &asked} }
		})
		for want := 1; want <= 3; want++ {
			synctest.Wait()
			if asked != want || m.Last().Utilisation == nil {
				t.Errorf("after %d periods it has asked %d times: %+v", want-1, asked, m.Last())
			}
			time.Sleep(time.Second)
		}
		m.Close()
		m.Close()
		synctest.Wait()
		before := asked
		time.Sleep(time.Minute)
		if asked != before {
			t.Errorf("it asked %d times after Close", asked-before)
		}
	})
}

// TestMonitorWithoutSource: no library, no figures, and nothing waits.
func TestMonitorWithoutSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := watch(time.Second, func() func() Activity { time.Sleep(time.Hour); return nil })
		if m.Last() != (Activity{}) {
			t.Errorf("got %+v from nothing", m.Last())
		}
		m.Close()
		time.Sleep(2 * time.Hour)
	})
	var none *Monitor
	none.Close()
	if none.Last() != (Activity{}) {
		t.Error("no monitor has figures")
	}
}
