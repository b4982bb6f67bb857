//go:build !linux && !darwin

package files

import "os"

// FreeSpace is implemented only for Linux and macOS.
func FreeSpace(string) (bytes int64, ok bool) { return 0, false }

func lockDir(string) (*os.File, error) { return nil, errNoLocks }
