//go:build !linux && !darwin

package files

import "os"

func lockDir(string) (*os.File, error) { return nil, errNoLocks }
