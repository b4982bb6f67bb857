package session

import (
	"runtime"
	"sync"
)

// thread is an OS thread in which a session saves. SaveV2 of TensorFlow 2.21 fills a buffer of 8 MiB,
// and the arena of glibc's malloc that the calling thread uses keeps it after the first save. With saves
// in many threads, each arena would keep one.
type thread struct {
	mu     sync.Mutex
	calls  chan func() // nil before the first call
	closed bool
}

// run calls f in the thread, which starts with the first call. After close, run calls f in the
// calling thread.
func (t *thread) run(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		f()
		return
	}
	if t.calls == nil {
		t.calls = make(chan func())
		go func(calls <-chan func()) {
			runtime.LockOSThread() // the thread ends with the goroutine
			for call := range calls {
				call()
			}
		}(t.calls)
	}
	done := make(chan struct{})
	t.calls <- func() { defer close(done); f() }
	<-done
}

// close ends the thread after the call in progress.
func (t *thread) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls != nil && !t.closed {
		close(t.calls)
	}
	t.closed = true
}
