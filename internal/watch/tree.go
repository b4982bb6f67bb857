package watch

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// tree has processes and their descendants. A descendant stays a member when its parent ends.
type tree struct {
	roots   []int
	members map[int]*member
	scanned time.Time
	ended   []Process                   // members that have ended
	gpu     func(pid int) memory.Source // reads the GPU memory of a member; may be nil
	peaks   bool                        // whether samples have the peaks
}

type member struct {
	sampler *memory.Sampler
	sample  memory.Sample
	command string
	first   memory.Bytes // its memory in the first and in the last sample
	last    memory.Bytes
}

// scanEvery is the time between two searches for new processes.
const scanEvery = 500 * time.Millisecond

func newTree(roots ...int) *tree {
	t := &tree{roots: roots, members: map[int]*member{}}
	t.scan()
	return t
}

// add makes a process a member, if it exists. It reads its command again, since a process may execute another program.
func (t *tree) add(pid int) {
	command, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	words := strings.Fields(string(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
	if len(words) == 0 {
		return // it is about to end
	}
	text := strings.Join(words[:min(len(words), 6)], " ")
	if m := t.members[pid]; m != nil {
		m.command = text
		return
	}
	var sources []memory.Source
	if t.gpu != nil {
		if source := t.gpu(pid); source != nil {
			sources = append(sources, source)
		}
	}
	s, err := memory.NewSampler(pid, sources...)
	if err != nil {
		return // it has ended
	}
	t.members[pid] = &member{sampler: s, command: text}
}

// scan finds new descendants, unless it has looked for them just now.
func (t *tree) scan() {
	if time.Since(t.scanned) < scanEvery {
		return
	}
	t.scanned = time.Now()
	parents := map[int]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		// The fields after the command, which is in parentheses, are the state and the parent.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if err != nil || len(fields) < 2 || fields[0][0] == 'Z' {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parents[pid], _ = strconv.Atoi(string(fields[1]))
	}
	for _, pid := range t.roots {
		if _, runs := parents[pid]; runs {
			t.add(pid)
		}
	}
	for pid := range parents {
		for p, known := parents[pid]; known; p, known = parents[p] {
			if t.members[p] != nil {
				t.add(pid)
				break
			}
		}
	}
}

// The layers of a tree.
const (
	// Total is what counts for a limit: anonymous and shared memory, and what was swapped out.
	Total     memory.Layer = "memory"
	processes memory.Layer = "process count"
)

var summed = []memory.Layer{memory.RSS, memory.Anon, memlayer.File, memlayer.Shared, memlayer.Swap, memlayer.Threads}

// sample reads the memory of all members.
func (t *tree) sample() memory.Sample {
	into := memory.Sample{At: time.Now()}
	sums := map[memory.Layer]memory.Reading{}
	layers := summed
	if t.peaks {
		layers = slices.Concat(summed, []memory.Layer{memlayer.Peak, memlayer.GPUUsed, memlayer.GPUProcess})
	}
	for pid, m := range t.members {
		if err := m.sampler.Sample(0, &m.sample); err != nil || !m.sample.Get(memory.RSS).OK { // it has ended
			t.remove(pid)
			continue
		}
		m.last = m.held()
		m.first = cmp.Or(m.first, m.last)
		for _, layer := range layers {
			switch r := m.sample.Get(layer); {
			case r.OK && layer == memlayer.GPUUsed: // that of the whole device
				sums[layer] = r
			case r.OK:
				sums[layer] = memory.Known(sums[layer].Bytes + r.Bytes)
			}
		}
	}
	for _, layer := range layers {
		if r := sums[layer]; r.OK || slices.Contains(summed, layer) {
			into.Set(layer, r)
		}
	}
	held := sums[memory.Anon]
	held.Bytes += sums[memlayer.Shared].Bytes + sums[memlayer.Swap].Bytes
	into.Set(Total, held)
	into.Set(processes, memory.Known(memory.Bytes(len(t.members))))
	return into
}

// measure makes samples have the peaks, and the memory on GPUs that gpu reads, if it is not nil.
func (t *tree) measure(gpu func(pid int) memory.Source) {
	t.gpu, t.peaks, t.scanned = gpu, true, time.Time{}
	for pid := range t.members {
		t.remove(pid)
	}
	t.scan()
}

// resetPeaks makes the peaks of all members begin anew. Where the system refuses, they are those of the whole run.
func (t *tree) resetPeaks() {
	for _, m := range t.members {
		_ = m.sampler.ResetPeak()
	}
}

// held is the memory of a process that counts for a limit.
func (m *member) held() memory.Bytes {
	return m.sample.Get(memory.Anon).Bytes + m.sample.Get(memlayer.Shared).Bytes + m.sample.Get(memlayer.Swap).Bytes
}

// waiting are the system calls in which Python and loops of events expect a signal. After futex, Python and the locks
// of the C library wait again. Loops of events use epoll_wait and epoll_pwait. Python's time.sleep is clock_nanosleep
// with an absolute time, and before Python 3.11 it is pselect6 or select without files. Other calls, such as read or
// poll, may fail in a library that does not expect a signal. A thread may begin such a call just before the signal
// comes. The numbers are those of Linux.
var waiting = map[string]*regexp.Regexp{
	"amd64": regexp.MustCompile(`^(running|202 .*|232 .*|281 .*|230 0x1 0x1 .*|270 0x0 .*|23 0x0 .*)$`),
	"arm64": regexp.MustCompile(`^(running|98 .*|22 .*|115 0x1 0x1 .*|72 0x0 .*)$`),
}

// interruptible reports whether the main thread of a process runs, or waits where it expects a signal.
func interruptible(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, pid))
	harmless := waiting[runtime.GOARCH]
	return err == nil && harmless != nil && harmless.Match(bytes.TrimSpace(state))
}

func (t *tree) remove(pid int) {
	m := t.members[pid]
	_ = m.sampler.Close() // a file of /proc
	if m.first > 0 {
		t.ended = append(t.ended, m.process(pid))
	}
	if len(t.ended) > 100 {
		t.ended = t.ended[1:]
	}
	delete(t.members, pid)
}

func (m *member) process(pid int) Process {
	return Process{PID: pid, Command: m.command, First: m.first, Last: m.last}
}

// close closes the files, and returns the processes.
func (t *tree) close() []Process {
	for pid := range t.members {
		t.remove(pid)
	}
	return t.ended
}
