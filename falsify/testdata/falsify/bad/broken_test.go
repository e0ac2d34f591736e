//go:build broken

package bad

import "testing"

func TestBroken(t *testing.T) { t.Log(Triple(1)) }
