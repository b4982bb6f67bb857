package memory

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime/metrics"
	"strconv"
	"strings"
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
	m := &marks{connection: c, steps: map[string]int{}, counts: map[Layer]int64{}}
	m.every, _ = strconv.Atoi(os.Getenv(memlayer.MarkEveryEnv)) // 0 without the variable
	for _, layer := range goMetrics {
		if m.every > 0 || layer.layer == memlayer.GoLive || layer.layer == memlayer.Goroutines {
			m.metrics, m.of = append(m.metrics, metrics.Sample{Name: layer.name}), append(m.of, layer)
		}
	}
	hello := map[string]any{"hello": map[string]any{"go": true}}
	if json.NewEncoder(c).Encode(hello) != nil {
		return nil
	}
	return m
})

// marks is what a mark tells, and how it is sent.
type marks struct {
	kind   string
	steps  map[string]int
	counts map[Layer]int64
	line   []byte
	answer [1]byte

	mu      sync.Mutex // of steps
	waiting sync.Mutex // held by the mark that waits; of what follows
	// connection is nil once nobody watches any more. late is true while the answer to an earlier mark is to come.
	connection net.Conn
	late       bool
	next       time.Time
	every      int // steps between two marks; 0 means that time decides
	metrics    []metrics.Sample
	of         []goMetric
}

// The time between two marks, and the longest wait for an answer.
const (
	betweenMarks = 50 * time.Millisecond
	markWait     = 10 * time.Second
)

func (m *marks) mark(ctx context.Context, kind string) {
	m.mu.Lock()
	m.steps[kind]++
	n := m.steps[kind]
	m.mu.Unlock()
	if !m.waiting.TryLock() {
		return // another goroutine's mark is being read
	}
	defer m.waiting.Unlock()
	due := !time.Now().Before(m.next)
	if m.every > 0 {
		due = n == 1 || n%m.every == 0
	}
	if m.connection == nil || !due || ctx.Err() != nil {
		return
	}
	m.kind = kind
	m.count()
	if err := m.send(ctx, m.message()); err != nil {
		_ = m.connection.Close() // nobody watches any more
		m.connection = nil
	}
	m.next = time.Now().Add(betweenMarks)
}

// count reads the amounts that only this process knows.
func (m *marks) count() {
	clear(m.counts)
	metrics.Read(m.metrics)
	for i, s := range m.metrics {
		if s.Value.Kind() == metrics.KindUint64 {
			m.counts[m.of[i].layer] += int64(m.of[i].sign) * int64(s.Value.Uint64())
		}
	}
	if source := memlayer.MarkSource.Load(); source != nil {
		(*source)(func(layer string, amount int64) { m.counts[Layer(layer)] = amount })
	}
}

// message returns the line of a mark. It is written by hand, so that a mark leaves no garbage in the memory that is
// read.
func (m *marks) message() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := appendText(append(m.line[:0], `{"mark":`...), m.kind)
	b = appendNumbers(append(b, `,"steps":{`...), m.steps)
	b = appendNumbers(append(b, `},"counts":{`...), m.counts)
	m.line = append(b, "}}\n"...)
	return m.line
}

// appendText appends a string as JSON. Only texts with other characters than printable ASCII allocate.
func appendText(b []byte, text string) []byte {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		quoted, _ := json.Marshal(text) // a string has no error
		return append(b, quoted...)
	}
	return strconv.AppendQuote(b, text)
}

func appendNumbers[K ~string, V int | int64](b []byte, numbers map[K]V) []byte {
	first := true
	for name, n := range numbers {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = strconv.AppendInt(append(appendText(b, string(name)), ':'), int64(n), 10)
	}
	return b
}

// send writes a message and reads the answer. If ctx ends before the answer comes, the next call reads it first.
func (m *marks) send(ctx context.Context, text []byte) error {
	if m.late {
		if err := m.receive(ctx); err != nil || m.late {
			return err
		}
	}
	err := m.connection.SetWriteDeadline(time.Now().Add(markWait))
	if err == nil {
		_, err = m.connection.Write(text)
	}
	if err != nil {
		return err
	}
	m.late = true
	return m.receive(ctx)
}

// receive reads an answer. It looks several times a second whether ctx has ended.
func (m *marks) receive(ctx context.Context) error {
	for end := time.Now().Add(markWait); ; {
		if err := m.connection.SetReadDeadline(time.Now().Add(betweenMarks)); err != nil {
			return err
		}
		_, err := m.connection.Read(m.answer[:])
		switch {
		case err == nil:
			m.late = false
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end):
			return err
		case ctx.Err() != nil:
			return nil
		}
	}
}
