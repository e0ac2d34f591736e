package runs

import (
	"math"

	runlog "apr/run/log"
)

// curvePoints is how many points the small curve of a run has at most.
const curvePoints = 48

// curve is the loss of the student's leg in few points, each a mean of its neighbours.
func curve(steps []runlog.Step) (points []runlog.Number) {
	var all []runlog.Number
	for _, s := range steps {
		if s.Leg == studentLeg && s.Loss.Finite() {
			all = append(all, s.Loss)
		}
	}
	n := min(curvePoints, len(all))
	for i := range n {
		part := all[i*len(all)/n : (i+1)*len(all)/n]
		var sum runlog.Number
		for _, v := range part {
			sum += v
		}
		// Four digits are more than such a curve shows.
		points = append(points, runlog.Number(math.Round(float64(sum)/float64(len(part))*1e4)/1e4))
	}
	return points
}

// planned is how many steps the student's leg is to have, 0 if the run does not say.
func planned(r *runlog.Record) int {
	for i := len(r.Events) - 1; i >= 0; i-- {
		d, _ := r.Events[i].Detail.(map[string]any)
		if steps, ok := d["steps"].(float64); ok && r.Events[i].Kind == "record" && r.Events[i].Name == "leg" && d["leg"] == studentLeg {
			return int(steps)
		}
	}
	return 0
}
