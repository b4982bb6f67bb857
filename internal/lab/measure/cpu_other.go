//go:build !unix

package measure

import "time"

// ProcessTime is not known.
func ProcessTime() time.Duration { return 0 }
