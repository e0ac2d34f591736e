//go:build !unix

package distill

import "time"

func processorTime() time.Duration { return 0 }
