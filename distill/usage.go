package distill

import "time"

// usage measures how many processors this process keeps busy.
type usage struct {
	at  time.Time
	cpu time.Duration
}

// since returns the busy processors since the last call, 0 the first time, and where the system does not tell.
func (u *usage) since() float64 {
	now, cpu := time.Now(), processorTime()
	wall, busy := now.Sub(u.at), cpu-u.cpu
	first := u.at.IsZero()
	u.at, u.cpu = now, cpu
	if first || wall <= 0 || busy <= 0 {
		return 0
	}
	return busy.Seconds() / wall.Seconds()
}
