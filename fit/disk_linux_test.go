package fit

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
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
	_, err := (&Loop{Session: l, Batch: 4, Epochs: epochs}).Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	return l.state()
}

func TestFullDiskContinues(t *testing.T) {
	root := smallTempDisk(t)
	dir, filler := filepath.Join(root, "ckpt"), filepath.Join(root, "filler")
	l := newLinear()
	var log bytes.Buffer
	loop := Loop{Session: heavy{linear: l}, Batch: 4, Epochs: 6, Log: warnings(&log)}
	loop.Hook(Checkpoint{Folder: dir, Keep: -1, ContinueOnError: true}.Hook())
	during(l, map[int64]func(){
		5: func() { fill(t, filler) },
		7: func() { // the checkpoint of step 6 has failed
			require.Equal(t, []string{lockName, "ckpt-2", "ckpt-4"}, names(t, dir), "half a checkpoint is not left")
			found, err := checkpoint.List(dir)
			require.NoError(t, err)
			require.NoError(t, errors.Join(found[0].Err, found[1].Err))
		},
		9: func() { require.NoError(t, os.Remove(filler)) },
	})
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, trained(t, 6), l.state())
	require.Equal(t, []string{"ckpt-10", "ckpt-12", "ckpt-2", "ckpt-4"}, names(t, dir))
	require.Equal(t, []string{failedEvent}, h.Records[3].Events)
	require.Equal(t, []string{failedEvent}, h.Records[4].Events)
	require.Empty(t, h.Records[5].Events)
	require.Contains(t, log.String(), "no space left on device")
	require.Contains(t, log.String(), "free some space")
	require.Contains(t, log.String(), "ckpt-4 is good")
	requireSound(t, dir)
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
		require.Equal(t, files.Remedy(syscall.ENOSPC, "keep fewer checkpoints, remove folders diverged-*"), failed.Remedy)
		require.ErrorContains(t, err, "all other checkpoints are needed")
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

		// The disk has space for a small file, but not for a checkpoint.
		require.NoError(t, os.Truncate(filepath.Join(root, "more"), 0))
		require.NoError(t, os.Truncate(filler, ballast))
		require.NoError(t, os.WriteFile(filepath.Join(root, "more"), make([]byte, smallDisk-ballast*5/2), 0o666))
		var log bytes.Buffer
		complete := Loop{Session: heavy{linear: newLinear()}, Batch: 4, Epochs: 2, Resume: dir, Validation: c.validation, Log: warnings(&log)}
		complete.Hook(Checkpoint{Folder: dir, Keep: 1}.Hook())
		_, err = complete.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		require.Contains(t, log.String(), "there is no space for another checkpoint")

		require.NoError(t, errors.Join(os.Remove(filler), os.Remove(filepath.Join(root, "more"))))
		_, err = loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		require.Equal(t, trained(t, 6), l.state())
		requireSound(t, dir)
	}
}

// A training with ContinueOnError that resumes on a full disk writes its checkpoints when there is
// space. A new training on a full disk fails.
func TestFullDiskResumes(t *testing.T) {
	root := smallTempDisk(t)
	dir, filler := filepath.Join(root, "ckpt"), filepath.Join(root, "filler")
	run := func(l *linear, epochs int, log *bytes.Buffer) (*History, error) {
		loop := Loop{Session: heavy{linear: l}, Batch: 4, Epochs: epochs, Resume: dir, Log: warnings(log)}
		loop.Hook(Checkpoint{Folder: dir, Keep: 2, ContinueOnError: true, Best: "loss"}.Hook(), HistoryFile(filepath.Join(root, "run.jsonl"), true))
		return loop.Run(t.Context(), samples(t, 8))
	}
	var log bytes.Buffer
	_, err := run(newLinear(), 2, &log)
	require.NoError(t, err)
	fill(t, filler)
	l := newLinear()
	during(l, map[int64]func(){7: func() { require.NoError(t, os.Remove(filler)) }})
	h, err := run(l, 6, &log)
	require.NoError(t, err)
	require.Equal(t, trained(t, 6), l.state())
	require.Equal(t, filepath.Join(dir, "ckpt-4"), h.ResumedFrom)
	require.Equal(t, filepath.Join(dir, "ckpt-12"), h.Checkpoint)
	require.Contains(t, log.String(), "checkpoints cannot be written now")
	require.Equal(t, upTo(6), linesIn(t, filepath.Join(root, "run.jsonl")))
	requireSound(t, dir)

	fill(t, filler)
	l = newLinear()
	fresh := Loop{Session: heavy{linear: l}, Batch: 4, Epochs: 2}
	fresh.Hook(Checkpoint{Folder: filepath.Join(root, "other"), ContinueOnError: true}.Hook())
	_, err = fresh.Run(t.Context(), samples(t, 8))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Empty(t, l.steps)
}

// The disk holds little more than two checkpoints, so the oldest one is removed first.
func TestFullDiskMakesRoom(t *testing.T) {
	for _, silent := range []bool{false, true} {
		root := smallTempDisk(t)
		dir := filepath.Join(root, "ckpt")
		require.NoError(t, os.WriteFile(filepath.Join(root, "filler"), make([]byte, smallDisk-ballast*5/2), 0o666))
		l := newLinear()
		var log bytes.Buffer
		loop := Loop{Session: heavy{l, silent}, Batch: 4, Epochs: 5, Log: warnings(&log)}
		loop.Hook(Checkpoint{Folder: dir, Keep: 2}.Hook())
		h, err := loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		require.Equal(t, []string{"ckpt-10", "ckpt-8"}, names(t, dir))
		require.Contains(t, log.String(), "an old checkpoint was removed to write a new one")
		for _, r := range h.Records {
			require.Empty(t, r.Events)
		}
		requireSound(t, dir)
	}
}

// The only good checkpoint stays although its removal would free enough space, because the
// other checkpoint is damaged.
func TestFullDiskKeepsTheLastGoodCheckpoint(t *testing.T) {
	root := smallTempDisk(t)
	dir := filepath.Join(root, "ckpt")
	require.NoError(t, os.WriteFile(filepath.Join(root, "filler"), make([]byte, smallDisk-ballast*5/2), 0o666))
	l := newLinear()
	first := Loop{Session: heavy{linear: l}, Batch: 4, Epochs: 2}
	first.Hook(Checkpoint{Folder: dir, Keep: 2}.Hook())
	_, err := first.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, []string{"ckpt-2", "ckpt-4"}, names(t, dir))
	require.NoError(t, os.Truncate(filepath.Join(dir, "ckpt-4", "variables.index"), 0))

	l = newLinear()
	again := Loop{Session: heavy{linear: l}, Batch: 4, Epochs: 3, Resume: dir}
	again.Hook(Checkpoint{Folder: dir, Keep: 1}.Hook())
	during(l, map[int64]func(){3: func() { fill(t, filepath.Join(root, "more")) }})
	_, err = again.Run(t.Context(), samples(t, 8))
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = verify(filepath.Join(dir, "ckpt-2"))
	require.NoError(t, err)
}

func TestReadOnlyAtStart(t *testing.T) {
	dir := tempDir(t)
	undo := readOnly(t, dir)
	for _, policy := range []bool{false, true} {
		l := newLinear()
		loop := Loop{Session: l, Batch: 4, Epochs: 2}
		loop.Hook(Checkpoint{Folder: dir, ContinueOnError: policy}.Hook())
		_, err := loop.Run(t.Context(), samples(t, 8))
		require.ErrorIs(t, err, syscall.EROFS)
		require.ErrorContains(t, err, "checkpoint at start")
		require.ErrorContains(t, err, "use another folder")
		require.Empty(t, l.steps)
	}
	undo()

	// A run can resume from a read-only folder and write to another one.
	from, loop := checkpointed(t, Checkpoint{})
	readOnly(t, from)
	resumed := Loop{Session: newLinear(), Batch: 4, Epochs: 4, Resume: loop.Resume}
	resumed.Hook(Checkpoint{Folder: tempDir(t)}.Hook())
	h, err := resumed.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(from, "ckpt-6"), h.ResumedFrom)
}

func TestReadOnlyDuringARun(t *testing.T) {
	for _, policy := range []bool{false, true} {
		dir := tempDir(t)
		l := newLinear()
		var log bytes.Buffer
		var undo func()
		loop := Loop{Session: l, Batch: 4, Epochs: 5, Log: warnings(&log)}
		loop.Hook(Checkpoint{Folder: dir, ContinueOnError: policy}.Hook())
		during(l, map[int64]func(){
			3: func() { undo = readOnly(t, dir) },
			7: func() { undo() },
		})
		h, err := loop.Run(t.Context(), samples(t, 8))
		if !policy {
			undo()
			require.ErrorIs(t, err, syscall.EROFS)
			require.ErrorContains(t, err, "the file system is read-only")
			require.Equal(t, []string{lockName, "ckpt-2"}, names(t, dir))
			l = newLinear()
			loop.Session, loop.Resume = l, dir
			_, err = loop.Run(t.Context(), samples(t, 8))
			require.NoError(t, err)
		} else {
			require.NoError(t, err)
			require.Equal(t, 2, strings.Count(log.String(), "training continues without a checkpoint"))
			require.Equal(t, []string{failedEvent}, h.Records[2].Events)
		}
		require.Equal(t, trained(t, 5), l.state())
		requireSound(t, dir)
	}
}

// A line crosses the last page of the full disk, so the kernel writes only a part of the line.
func TestFullDiskLogFile(t *testing.T) {
	const epochs = 60
	for name, logger := range loggers {
		for _, policy := range []bool{false, true} {
			root, dir := smallTempDisk(t), tempDir(t)
			path, filler := filepath.Join(root, "logs", name), filepath.Join(root, "filler")
			l := newLinear()
			var log bytes.Buffer
			loop := Loop{Session: l, Batch: 4, Epochs: epochs, Log: warnings(&log)}
			whole := 0
			loop.Hook(logger(path).hook(policy), Checkpoint{Folder: dir, EveryEpochs: epochs}.Hook(), Hook{
				Name: "look", Priority: priorityCheckpoint, Epoch: func(_ context.Context, s *State) error {
					found := linesIn(t, path)
					require.Equal(t, upTo(len(found)), found)
					if len(found) == s.Epoch {
						whole++
					}
					return nil
				},
			})
			during(l, map[int64]func(){
				5:             func() { fill(t, filler) },
				2*epochs - 20: func() { require.NoError(t, os.Remove(filler)) },
			})
			h, err := loop.Run(t.Context(), samples(t, 8))
			if policy {
				require.NoError(t, err)
				require.Equal(t, upTo(epochs), linesIn(t, path))
				require.Less(t, whole, epochs, "the disk was full")
				require.Equal(t, 1, strings.Count(log.String(), "training continues without a line"))
				require.Contains(t, log.String(), "no space left on device (0 B free)")
				continue
			}
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "no space left on device (0 B free)")
			require.ErrorContains(t, err, "free some space")
			done := len(h.Records)
			require.Less(t, done, epochs)
			require.Equal(t, upTo(done-1), linesIn(t, path))
			require.Equal(t, filepath.Join(dir, checkpointName(2*int64(done))), h.Checkpoint)

			// No run begins on the full disk. A later run completes the file.
			l = newLinear()
			loop.Session, loop.Resume = l, dir
			_, err = loop.Run(t.Context(), samples(t, 8))
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.ErrorContains(t, err, "at start")
			require.Empty(t, l.steps)
			require.NoError(t, os.Remove(filler))
			_, err = loop.Run(t.Context(), samples(t, 8))
			require.NoError(t, err)
			require.Equal(t, trained(t, epochs), l.state())
			require.Equal(t, upTo(epochs), linesIn(t, path))
			require.Equal(t, []string{name}, names(t, filepath.Dir(path)))
		}
	}
}

// A new run writes nothing at its start, and has no space for later lines.
func TestFullDiskLogFileAtStart(t *testing.T) {
	for name, logger := range loggers {
		root := smallTempDisk(t)
		path := filepath.Join(root, name)
		l := newLinear()
		loop := Loop{Session: l, Batch: 4, Epochs: 1}
		loop.Hook(logger(path).hook(true))
		_, err := loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		fill(t, filepath.Join(root, "filler"))
		done := len(l.steps)
		_, err = loop.Run(t.Context(), samples(t, 8))
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, "at start")
		require.Len(t, l.steps, done)
		require.Equal(t, upTo(1), linesIn(t, path))
	}
}

func TestReadOnlyLogFileAtStart(t *testing.T) {
	for name, logger := range loggers {
		dir := tempDir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "old"+filepath.Ext(name)), nil, 0o666))
		undo := readOnly(t, dir)
		for _, file := range []string{name, "old" + filepath.Ext(name), filepath.Join("logs", name)} {
			for _, policy := range []bool{false, true} {
				l := newLinear()
				loop := Loop{Session: l, Batch: 4, Epochs: 2}
				loop.Hook(logger(filepath.Join(dir, file)).hook(policy))
				_, err := loop.Run(t.Context(), samples(t, 8))
				require.ErrorIs(t, err, syscall.EROFS)
				var failed *LogError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, filepath.Join(dir, file), failed.Path)
				require.ErrorContains(t, err, "at start")
				require.ErrorContains(t, err, "make it writable")
				require.Empty(t, l.steps)
			}
		}
		undo()
	}
}
