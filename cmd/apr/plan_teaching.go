package main

import (
	"fmt"

	"apr/distill"
	"apr/plan"
)

// teachingLines say what ranks of two kinds hold and do, beside as many ranks that each have the whole teacher.
func teachingLines(t *distill.TeachingPlan) []string {
	kinds := fmt.Sprintf("%s, %s: the table is of a rank that learns", counted(t.Learning, "learns", "learn"),
		counted(t.Teaching, "only teaches", "only teach"))
	if t.Memory != nil {
		kinds += "; one that teaches needs " + plan.Amount(t.Memory.Total)
	}
	work := fmt.Sprintf("%.3g operations a step for a rank that learns, %.3g for one that teaches", t.LearningFLOPs,
		t.TeachingFLOPs)
	return []string{"kinds of ranks", kinds, "", work, "faster", map[string]string{
		distill.FasterTaught: "--teacher-ranks", distill.FasterReplicated: "every rank with the whole teacher",
	}[t.Faster] + ", by operations: " + t.Reason, "", "not counted: " + t.NotCounted}
}

// counted is a number of ranks and what they do.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 rank " + one
	}
	return fmt.Sprintf("%d ranks %s", n, more)
}
