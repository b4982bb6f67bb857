package memory

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"runtime/metrics"
	"sync"
	"time"

	"steadyfit/internal/memlayer"
)

// Mark says that a step of a kind has ended, such as "step" or "request". If `steadyfit watch` has started this process,
// Mark waits until the memory of the process is read, at most 20 times a second and as long as ctx allows. Otherwise it
// does nothing. Mark may be called by several goroutines.
//
//	for ctx.Err() == nil {
//		trainOneBatch()
//		memory.Mark(ctx, "step")
//	}
func Mark(ctx context.Context, kind string) {
	if m := marker(); m != nil {
		m.mark(ctx, kind)
	}
}

// marker returns the connection to the program that watches this process; nil if there is none.
var marker = sync.OnceValue(func() *marks {
	path := os.Getenv(memlayer.WatchEnv)
	if path == "" {
		return nil
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil // it has ended
	}
	m := &marks{connection: c, Steps: map[string]int{}, Counts: map[Layer]int64{}}
	for _, layer := range goMetrics {
		if layer.layer == memlayer.GoLive || layer.layer == memlayer.Goroutines {
			m.metrics = append(m.metrics, metrics.Sample{Name: layer.name})
			m.layers = append(m.layers, layer.layer)
		}
	}
	hello := map[string]any{"hello": map[string]any{"go": true}}
	if json.NewEncoder(c).Encode(hello) != nil {
		return nil
	}
	return m
})

// marks is a message of a mark, and how it is sent.
type marks struct {
	Mark   string          `json:"mark"`
	Steps  map[string]int  `json:"steps"`
	Counts map[Layer]int64 `json:"counts"`

	mu      sync.Mutex // of Steps
	waiting sync.Mutex // held by the mark that waits; of what follows
	// connection is nil once nobody watches any more. late is true while an answer is still to come.
	connection net.Conn
	late       bool
	next       time.Time
	metrics    []metrics.Sample
	layers     []Layer
}

// The time between two marks, and the longest wait for an answer.
const (
	betweenMarks = 50 * time.Millisecond
	markWait     = 10 * time.Second
)

func (m *marks) mark(ctx context.Context, kind string) {
	m.mu.Lock()
	m.Steps[kind]++
	m.mu.Unlock()
	if !m.waiting.TryLock() {
		return // another goroutine's mark is being read
	}
	defer m.waiting.Unlock()
	if m.connection == nil || time.Now().Before(m.next) || ctx.Err() != nil {
		return
	}
	m.Mark = kind
	metrics.Read(m.metrics)
	for i, s := range m.metrics {
		if s.Value.Kind() == metrics.KindUint64 {
			m.Counts[m.layers[i]] = int64(s.Value.Uint64())
		}
	}
	m.mu.Lock()
	text, err := json.Marshal(m)
	m.mu.Unlock()
	if err == nil {
		err = m.send(ctx, append(text, '\n'))
	}
	if err != nil {
		_ = m.connection.Close() // nobody watches any more
		m.connection = nil
	}
	m.next = time.Now().Add(betweenMarks)
}

// send writes a message and reads the answer. If ctx ends before the answer comes, the next call reads it first.
func (m *marks) send(ctx context.Context, text []byte) error {
	if err := m.connection.SetWriteDeadline(time.Now().Add(markWait)); err != nil {
		return err
	}
	answer := make([]byte, 1)
	for {
		if err := m.connection.SetReadDeadline(time.Now().Add(markWait)); err != nil {
			return err
		}
		if !m.late {
			if _, err := m.connection.Write(text); err != nil {
				return err
			}
		}
		again := m.late
		m.late = true
		done := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			_ = m.connection.SetReadDeadline(time.Now()) // the answer may come later
			close(done)
		})
		_, err := m.connection.Read(answer)
		if !stop() {
			<-done
		}
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if m.late = false; err != nil || !again {
			return err
		}
	}
}
