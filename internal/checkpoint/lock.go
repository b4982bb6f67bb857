package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"steadyfit/internal/files"
)

// lockName is the file in a folder of checkpoints that a run locks. Its content names the run.
const lockName = ".lock"

// Lock is an advisory lock on a folder of checkpoints. The kernel releases it when the process ends. Child
// processes do not hold it. On NFS it works between hosts unless the mount has nolock or local_lock=flock.
type Lock struct {
	dir  string
	file *os.File // nil on a file system without locks, and after Release
}

// Acquire locks a folder, or returns ErrLocked at once. On a file system without locks, it logs a
// warning, and the lock has no effect.
func Acquire(dir string, log *slog.Logger) (*Lock, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	switch err := files.Lock(file); {
	case errors.Is(err, files.ErrLocked):
		const most = 1 << 10
		holder, _ := io.ReadAll(io.NewSectionReader(file, 0, most))
		if len(holder) == 0 {
			holder = []byte("an unknown process")
		}
		return nil, errors.Join(fmt.Errorf("%s: %w by %s; wait until it has ended, or stop it, or give this run another "+
			"folder for its checkpoints", dir, ErrLocked, strings.TrimSpace(string(holder))), file.Close())
	case err != nil:
		log.Warn("this file system has no locks; make sure that only one run uses the folder of checkpoints", "folder", dir,
			"error", err)
		return &Lock{dir: dir}, file.Close()
	}
	// The content is only information, and a full disk has no space for it.
	if file.Truncate(0) == nil {
		host, _ := os.Hostname()
		holder := fmt.Sprintf("process %d on %s, since %s\n", os.Getpid(), host, time.Now().Format(time.RFC3339))
		_, _ = file.WriteAt([]byte(holder), 0)
	}
	return &Lock{dir, file}, nil
}

// of reports whether the lock is for a folder.
func (l *Lock) of(dir string) bool { return l != nil && files.Same(l.dir, dir) }

// Release releases the lock. Releasing twice, or a nil Lock, does nothing.
func (l *Lock) Release() error {
	if l == nil || l.file == nil {
		return nil
	}
	file := l.file
	l.file = nil
	if err := file.Close(); err != nil {
		return fmt.Errorf("unlocking a folder of checkpoints: %w", err)
	}
	return nil
}
