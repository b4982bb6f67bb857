//go:build !unix

package measure

import "time"

// ProcessTime is not available on this system.
func ProcessTime() time.Duration { return 0 }
