package fit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/files"
)

const (
	smallDisk = 1 << 20
	ballast   = 200 << 10
)

// mount mounts a file system during a test.
func mount(t testing.TB, source, target, kind string, flags uintptr, options string) (unmount func()) {
	err := syscall.Mount(source, target, kind, flags, options)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("this needs the right to mount a file system, as root has: %v", err)
	}
	require.NoError(t, err)
	mounted := true
	unmount = func() {
		if mounted {
			mounted = false
			require.NoError(t, syscall.Unmount(target, syscall.MNT_DETACH))
		}
	}
	t.Cleanup(unmount)
	return unmount
}

func smallTempDisk(t testing.TB) string {
	root := t.TempDir()
	mount(t, "steadyfit-test", root, "tmpfs", 0, "size=1m")
	return root
}

// readOnly makes a folder read-only for all users of its path.
func readOnly(t testing.TB, dir string) (undo func()) {
	undo = mount(t, dir, dir, "", syscall.MS_BIND, "")
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	return undo
}

// heavy is a session with large checkpoints.
type heavy struct {
	*linear
	// silent hides the cause of a failed save, as TensorFlow does.
	silent bool
}

func (h heavy) Save(ctx context.Context, prefix string) error {
	err := os.WriteFile(prefix+".ballast", make([]byte, ballast), 0o666)
	if err == nil {
		err = h.linear.Save(ctx, prefix)
	}
	if err != nil && h.silent {
		return errors.New("RESOURCE_EXHAUSTED: something")
	}
	return err
}

func fill(t testing.TB, path string) {
	f, err := os.Create(path)
	require.NoError(t, err)
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			size /= 2
		}
	}
	require.NoError(t, f.Close())
}

// during calls functions before train steps, counted from 0.
func during(l *linear, steps map[int64]func()) {
	l.onTrain = func(step int64) error {
		if f := steps[step]; f != nil {
			f()
		}
		return nil
	}
}

// trained returns the state of a session after a number of epochs of 2 steps.
func trained(t testing.TB, epochs int) [2][3]uint64 {
	l := newLinear()
	complete(t, &Loop{Session: l, Batch: 4, Epochs: epochs}, samples(t, 8))
	return l.state()
}

func TestFullDiskStops(t *testing.T) {
	for _, c := range []struct {
		silent bool
		// A validation shows that the new checkpoint would be good and could replace the old one,
		// but the new one is not written yet.
		validation data.Dataset
	}{{false, nil}, {false, samples(t, 4)}, {true, nil}} {
		root := smallTempDisk(t)
		dir, filler := filepath.Join(root, "ckpt"), filepath.Join(root, "filler")
		l := newLinear()
		loop := Loop{Session: heavy{l, c.silent}, Batch: 4, Epochs: 6, Validation: c.validation}
		loop.Hook(Checkpoint{Folder: dir, Keep: 1}.Hook())
		during(l, map[int64]func(){5: func() { fill(t, filler) }})
		h, err := loop.Run(t.Context(), samples(t, 8))
		require.Equal(t, !c.silent, errors.Is(err, syscall.ENOSPC))
		var failed *checkpoint.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, filepath.Join(dir, "ckpt-4"), failed.Good)
		if !c.silent {
			require.ErrorContains(t, failed, files.Remedy(syscall.ENOSPC))
		}
		require.Len(t, h.Records, 3)
		require.Contains(t, names(t, dir), "ckpt-4")

		// The disk is still full, so no run begins.
		l = newLinear()
		loop.Session, loop.Resume = heavy{linear: l}, dir
		fill(t, filepath.Join(root, "more"))
		_, err = loop.Run(t.Context(), samples(t, 8))
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, "checkpoint at start")
		require.Empty(t, l.steps)

		require.NoError(t, errors.Join(os.Remove(filler), os.Remove(filepath.Join(root, "more"))))
		complete(t, &loop, samples(t, 8))
		require.Equal(t, trained(t, 6), l.state())
		requireSound(t, dir)
	}
}

func TestReadOnlyAtStart(t *testing.T) {
	dir := tempDir(t)
	undo := readOnly(t, dir)
	l := newLinear()
	start := Loop{Session: l, Batch: 4, Epochs: 2}
	start.Hook(Checkpoint{Folder: dir}.Hook())
	_, err := start.Run(t.Context(), samples(t, 8))
	require.ErrorIs(t, err, syscall.EROFS)
	require.ErrorContains(t, err, "checkpoint at start")
	require.ErrorContains(t, err, "use another folder")
	require.Empty(t, l.steps)
	undo()

	// A run can resume from a read-only folder and write to another one.
	from, loop := checkpointed(t, Checkpoint{})
	readOnly(t, from)
	resumed := Loop{Session: newLinear(), Batch: 4, Epochs: 4, Resume: loop.Resume}
	h := complete(t, &resumed, samples(t, 8), Checkpoint{Folder: tempDir(t)}.Hook())
	require.Equal(t, filepath.Join(from, "ckpt-6"), h.ResumedFrom)
}
