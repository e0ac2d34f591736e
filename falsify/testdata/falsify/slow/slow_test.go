package slow

import "testing"

func TestNeverEnds(t *testing.T) { <-t.Context().Done() }
