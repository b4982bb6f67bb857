//go:build !leakcheck

package tfbind

// creationSite is empty without the build tag leakcheck.
type creationSite struct{}

func here() creationSite   { return creationSite{} }
func recordLeak(h *handle) {}
