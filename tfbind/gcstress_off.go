//go:build !gcstress

package tfbind

// stress does nothing without the build tag gcstress.
func stress() {}
