package watch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	_ "embed"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

//go:embed probe/sitecustomize.py
var sitecustomize []byte

//go:embed probe/probe.py
var probe []byte

//go:embed probe/remedies.py
var remedies []byte

//go:embed probe/stacks.py
var stacks []byte

// message is a line from a probe or from memory.Mark. A mark, and each Hello of a connection but the first, expect one
// byte as their answer.
type message struct {
	Hello *struct {
		Asked bool // whether the process answers SIGURG
	}
	// Imported means that the process has imported a package with hooks. What came before is its start.
	Imported *struct{}
	// Mark is the kind of step that has ended; empty at the end of the program.
	Mark   *string
	Steps  map[string]int
	Epochs int
	Counts map[memory.Layer]float64

	Containers []container
	Stacks     []stack
	Places     []place
	Missed     []string

	from  *peer
	ended bool // the connection is closed
}

// container is a list, a dict, a set or a deque of Python that becomes longer.
type container struct {
	ID         int64
	Name, File string
	Line       int
	Own        bool // whether File is a file of the program
	Type       string
	Holds      string // the type of its elements
	Length     int
	First      int     // the length when it began to grow
	Seconds    float64 // since then
	Bytes      float64 // of an element, estimated
}

// stack is native memory that a stack of functions has allocated in some time and steps.
type stack struct {
	Functions []string
	Bytes     float64
	Seconds   float64
	Steps     map[string]int
}

// place is where something happens in the program.
type place struct {
	What, Name, File string
	Line, Count      int
	Detail           string
}

// peer is a process that marks steps.
type peer struct {
	connection *net.UnixConn
	pid        int
	message    // the latest of each field
	endedAt    time.Time
	searches   int  // for containers
	due        bool // whether to ask for containers by a signal
	// ready is whether a signal was harmless at the last look. A thread that just wakes up in a call that a signal may
	// end looks as if it ran, so that two looks must agree.
	ready bool
}

// answer is what a process does after a mark.
type answer byte

const (
	goOn   answer = '\n'
	search answer = 's' // for containers, first
)

// listener accepts the connections of the processes of a program.
type listener struct {
	dir      string
	socket   *net.UnixListener
	messages chan message
	done     chan struct{}
}

func listen() (_ *listener, err error) {
	l := &listener{messages: make(chan message), done: make(chan struct{})}
	if l.dir, err = os.MkdirTemp("", "steadyfit-watch-"); err != nil {
		return nil, fmt.Errorf("the probe needs a temporary folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("probe: %w", err)
			_ = os.RemoveAll(l.dir) // err is the error to report
		}
	}()
	files := map[string][]byte{"sitecustomize.py": sitecustomize, "probe.py": probe, "remedies.py": remedies,
		"stacks.py": stacks}
	for name, text := range files {
		if err = os.WriteFile(filepath.Join(l.dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	l.socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(l.dir, "socket"), Net: "unix"})
	if err != nil {
		return nil, err
	}
	go l.accept()
	return l, nil
}

// environment returns the variables of a program with the probe.
func (l *listener) environment() []string {
	path := []string{l.dir}
	outer := filepath.Dir(os.Getenv(memlayer.WatchEnv)) // of a watch that runs this one
	for _, own := range filepath.SplitList(os.Getenv("PYTHONPATH")) {
		if own != outer {
			path = append(path, own)
		}
	}
	return append(os.Environ(), "PYTHONPATH="+strings.Join(path, string(os.PathListSeparator)),
		memlayer.WatchEnv+"="+l.socket.Addr().String())
}

func (l *listener) accept() {
	for {
		c, err := l.socket.AcceptUnix()
		if err != nil {
			return // closed
		}
		go l.read(&peer{connection: c, pid: peerPID(c)})
	}
}

// maxMessage is the maximum length of a line.
const maxMessage = 1 << 20

// read sends the messages of a connection. A line that is no message ends the connection.
func (l *listener) read(p *peer) {
	defer p.connection.Close()
	lines := bufio.NewScanner(p.connection)
	lines.Buffer(nil, maxMessage)
	for m := (message{}); !m.ended; {
		m = message{from: p}
		m.ended = !lines.Scan() || json.Unmarshal(lines.Bytes(), &m) != nil
		select {
		case l.messages <- m:
		case <-l.done:
			return
		}
	}
}

// answer answers a process that waits at a mark.
func (p *peer) answer(a answer) { _, _ = p.connection.Write([]byte{byte(a)}) } // it may have ended

// peerPID returns the process at the other end in the namespace of this process.
func peerPID(c *net.UnixConn) (pid int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if who, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(who.Pid)
		}
	})
	return pid
}

func (l *listener) close() {
	close(l.done)
	_ = l.socket.Close()
	_ = os.RemoveAll(l.dir)
}
