//go:build !linux && !darwin

package doctor

import (
	"fmt"
	"os"
)

func diskSpace(dir string) (space, error) {
	if _, err := os.Stat(dir); err != nil {
		return space{}, fmt.Errorf("disk space: %w", err)
	}
	return space{writable: true}, nil
}
