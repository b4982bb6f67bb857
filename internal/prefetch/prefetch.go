// Package prefetch chooses how many batches of a training are read ahead.
package prefetch

import "steadyfit/data"

// Default returns how many batches of batch samples to read ahead: those that fit in 4 MiB, but at
// least 2 and at most 64. If the training has a memory budget (budgeted), the result is 2. Waking the
// consumer of the batches takes some microseconds, as long as a short step. With several batches ahead,
// the consumer waits less often.
func Default(ds data.Dataset, batch int, budgeted bool) int {
	const (
		bytes = 4 << 20
		least = 2
		most  = 64
	)
	if budgeted {
		return least
	}
	one := max(data.Prefetch(ds, 0).PassBytes(batch), 1)
	return int(min(max(bytes/one, least), most))
}
