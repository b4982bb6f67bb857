//go:build !linux && !darwin

package files

// FreeSpace is known on Linux and macOS.
func FreeSpace(string) (bytes int64, ok bool) { return 0, false }
