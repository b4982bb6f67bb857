package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"steadyfit/internal/files"
)

// lockName is the file in a folder of checkpoints that a run locks. It contains a Holder, and
// is removed when the lock is released.
const lockName = ".lock"

// lockTries is the number of attempts if other runs remove the file meanwhile.
const lockTries = 100

// Holder is a process that uses a folder of checkpoints.
type Holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"` // of the host or of the container
	Since time.Time `json:"since"`
}

func (h Holder) String() string {
	switch {
	case h.PID == 0:
		return "an unknown process"
	case h == thisProcess(h.Since):
		return fmt.Sprintf("another run of this process (%d), since %s", h.PID, h.Since.Format(time.RFC3339))
	}
	return fmt.Sprintf("process %d on %s, since %s", h.PID, h.Host, h.Since.Format(time.RFC3339))
}

func thisProcess(since time.Time) Holder {
	host, err := os.Hostname()
	if err != nil {
		host = "a host without a name"
	}
	return Holder{PID: os.Getpid(), Host: host, Since: since}
}

// Lock is an advisory lock on a folder of checkpoints. The kernel releases it when the process
// ends. Child processes do not hold it. On NFS it works between hosts unless the mount has
// nolock or local_lock=flock.
type Lock struct {
	file *os.File
	// before is the previous holder if it did not remove the file, because it was killed, or because
	// it runs on a host whose locks are not visible here.
	before Holder
	// unsupported is the error of a file system without locks, or nil.
	unsupported error
}

// Acquire locks a folder, or returns a LockedError at once. On a file system without locks, the
// lock has no effect.
func Acquire(dir string) (*Lock, error) {
	path := filepath.Join(dir, lockName)
	for range lockTries {
		l, err := tryLock(path)
		if l != nil || err != nil {
			return l, err
		}
	}
	return nil, fmt.Errorf("locking %s: its file was removed %d times by other runs", path, lockTries)
}

// tryLock returns neither a lock nor an error if another run removed the file meanwhile.
func tryLock(path string) (_ *Lock, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	l := &Lock{}
	defer func() {
		if l == nil || l.file == nil {
			err = errors.Join(err, file.Close())
		}
	}()
	held := readHolder(file)
	switch err := files.Lock(file); {
	case errors.Is(err, files.ErrLocked):
		return nil, &LockedError{Folder: filepath.Dir(path), Holder: held}
	case err != nil:
		l.unsupported = err
		_ = os.Remove(path) // a leftover empty file is harmless
		return l, nil
	}
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(info, now) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("locking: %w", err)
		}
		l = nil
		return nil, nil
	}
	l.file, l.before = file, held
	// The content is only information, and a full disk has no space for it.
	if text, err := json.Marshal(thisProcess(time.Now().UTC().Truncate(time.Second))); err == nil && file.Truncate(0) == nil {
		_, _ = file.WriteAt(append(text, '\n'), 0)
	}
	return l, nil
}

func readHolder(file *os.File) Holder {
	const enough = 4 << 10
	text, err := io.ReadAll(io.NewSectionReader(file, 0, enough))
	var h Holder
	if err != nil || json.Unmarshal(text, &h) != nil {
		return Holder{}
	}
	return h
}

// warn logs why another run might use the folder despite the lock.
func (l *Lock) warn(log *slog.Logger, dir string) {
	if l.unsupported != nil {
		log.Warn("this file system has no locks; make sure that only one run uses the folder of checkpoints", "folder", dir, "error", l.unsupported)
	}
	if l.before.PID != 0 && l.before.Host != thisProcess(l.before.Since).Host {
		log.Warn("an earlier run on another host has not unlocked this folder of checkpoints; make sure that it has ended, since the file system may not share locks between hosts",
			"folder", dir, "before", l.before.String())
	}
}

// Release releases the lock. Releasing twice, or a nil Lock, does nothing.
func (l *Lock) Release() error {
	if l == nil || l.file == nil {
		return nil
	}
	file := l.file
	l.file = nil
	// While the lock is held, the file cannot be that of another run. A file that cannot be
	// removed is harmless.
	_ = os.Remove(file.Name())
	return file.Close()
}
