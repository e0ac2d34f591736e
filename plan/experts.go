package plan

import (
	"fmt"
	"strings"

	"apr/device"
	"apr/device/dry"
)

// Experts says for which split of tokens over experts a step was planned; "" if it has no experts. Which experts are
// chosen only the device knows, so that its tensors and launches are those of the worst split, the same for each.
func Experts(r *dry.Record) string {
	type choice struct{ experts, active int }
	most, order := map[choice]int{}, []choice{}
	for _, o := range r.Ops {
		if o.Kind != device.OpRoute {
			continue
		}
		c := choice{o.Experts, o.Active}
		if _, ok := most[c]; !ok {
			order = append(order, c)
		}
		most[c] = max(most[c], o.Rows)
	}
	var all []string
	for _, c := range order {
		all = append(all, fmt.Sprintf("planned for all %d tokens on the same %d of %d experts", most[c], c.active, c.experts))
	}
	return strings.Join(all, "; ")
}
