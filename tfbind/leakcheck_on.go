//go:build leakcheck

package tfbind

import (
	"fmt"
	"runtime"
)

// creationSite is the stack at the creation of an object.
type creationSite []uintptr

func here() creationSite {
	pcs := make([]uintptr, 16)
	return pcs[:runtime.Callers(3, pcs)]
}

func recordLeak(h *handle) {
	l := fmt.Sprintf("%s of %d bytes, made at", h.kind.name, h.size)
	for frames := runtime.CallersFrames(h.site); ; {
		f, more := frames.Next()
		l += fmt.Sprintf(" %s:%d", f.File, f.Line)
		if !more {
			break
		}
	}
	leaks.Lock()
	defer leaks.Unlock()
	leaks.list = append(leaks.list, l)
}
