//go:build !linux || !cgo || (!amd64 && !arm64)

package gpu

import "errors"

func load() (*functions, error) {
	return nil, errors.New("this program was built without NVML, which needs Linux on amd64 or arm64, and cgo")
}
