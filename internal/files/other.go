//go:build !linux && !darwin

package files

import (
	"errors"
	"os"
)

// FreeSpace is implemented only for Linux and macOS.
func FreeSpace(string) (bytes int64, ok bool) { return 0, false }

// MayWrite is implemented only for Linux and macOS.
func MayWrite(string) bool { return true }

// Lock is implemented only for Linux and macOS.
func Lock(*os.File) error { return errors.ErrUnsupported }

// CheckOwner checks only on Linux and macOS.
func CheckOwner(*os.File) error { return nil }
