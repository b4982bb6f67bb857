//go:build !gcstress

package tfbind

// stress does nothing here: see the build tag gcstress.
func stress() {}
