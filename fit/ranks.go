package fit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/checkpoint"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	"steadyfit/option"
)

// Several processes ("ranks") can train a model together; see session.Options.Cluster. All ranks run the
// same Loop on the same data and have the same metrics, so their hooks decide alike; a program's own
// hook must not base decisions on anything that differs between processes, such as the time. Only the
// first rank calls the hooks of this package that write files, and resumes from a checkpoint. The other
// ranks start with the state of the first rank, which sends it as a checkpoint. If the context of a rank
// ends, all ranks stop after the same step.

// follows reports whether this run is one of a rank other than the first.
func (r *run) follows() bool { return r.rank > 0 }

// followers returns the hooks that a rank other than the first calls.
func followers(hooks []Hook) []Hook {
	return slices.DeleteFunc(slices.Clone(hooks), func(h Hook) bool { return h.local })
}

// sameSettings returns an error if the options that decide which steps a rank runs, apart from those that
// identify checkpoints, differ from those of the first rank.
func (r *run) sameSettings() error {
	l := r.loop
	own := map[string]string{
		"{Loop.Batch}": strconv.Itoa(l.Batch), "{Loop.Epochs}": strconv.Itoa(l.Epochs),
		"{Loop.InitialEpoch}":    strconv.Itoa(l.InitialEpoch),
		"{Loop.StepsPerEpoch}":   strconv.Itoa(r.state.StepsPerEpoch),
		"{Loop.ValidationEvery}": strconv.Itoa(l.ValidationEvery),
		"{Loop.Validation}":      strconv.FormatBool(l.Validation != nil),
	}
	for _, h := range r.hooks {
		if h.settings != nil {
			text, err := json.Marshal(h.settings)
			if err != nil {
				return err
			}
			own["hook "+h.Name] = string(text)
		}
	}
	text, err := json.Marshal(own)
	if err == nil {
		text, err = r.ranks.Share(text, 0)
	}
	var first map[string]string
	if err == nil {
		err = json.Unmarshal(text, &first)
	}
	if err != nil {
		return fmt.Errorf("comparing the ranks: %w", err)
	}
	if found := differences(first, own); len(found) > 0 {
		return otherRank(found[0])
	}
	return nil
}

// otherRank returns the error for a setting that has another value on the first rank.
func otherRank(d difference) error {
	return &option.Error{Option: "Options.Cluster", Reason: fmt.Sprintf("this rank has %s %s, and rank 0 has %s", d.key,
		orAbsent(d.run), orAbsent(d.checkpoint)), Fix: "give all ranks the same options and data"}
}

// together returns ctx if this process trains alone. With several ranks, it returns a context that
// is never cancelled; the end of ctx stops all ranks instead.
func (r *run) together(ctx context.Context) (_ context.Context, done func() bool) {
	if r.ranks == nil {
		return ctx, func() bool { return true }
	}
	return r.steady, context.AfterFunc(ctx, r.ranks.RequestStop)
}

// ended returns the error of ctx if it has ended. With several ranks, it returns the error of
// Stopped instead.
func ended(ctx context.Context, ranks contract.RankGroup) error {
	if ranks != nil {
		return ranks.Stopped()
	}
	return contextError(ctx)
}

// begin resumes the run and starts the hooks. With several ranks, all begin with the state of the first
// one. started is the number of hooks whose Start has succeeded.
func (r *run) begin(ctx context.Context) (started int, err error) {
	if r.ranks == nil {
		return r.resumeAndStart(ctx, r.loop.Resume)
	}
	differ := r.sameSettings()
	if r.follows() {
		started, err = r.takeOver(ctx, differ)
		r.state.History.Checkpoint, r.state.History.ResumedFrom = "", ""
	} else {
		if err = differ; err == nil {
			started, err = r.resumeAndStart(ctx, r.loop.Resume)
		}
		if err == nil {
			err = r.sendState()
		}
		if _, ended := r.ranks.Share(nil, 0); ended != nil { // the end of the state
			return started, errors.Join(err, ended)
		}
	}
	if err != nil {
		return started, err
	}
	failed, err := r.ranks.Gather(0)
	if i := slices.IndexFunc(failed, func(f int64) bool { return f != 0 }); err == nil && i >= 0 {
		err = fmt.Errorf("rank %d could not take over the state of rank 0; its output has the reason", i)
	}
	return started, err
}

// takeOver begins with the state that the first rank sends. differ is the result of sameSettings.
func (r *run) takeOver(ctx context.Context, differ error) (started int, err error) {
	dir, remove, err := r.receiveState()
	if err != nil {
		return 0, err
	}
	if err = differ; err == nil {
		started, err = r.resumeAndStart(ctx, dir)
	}
	var mismatch *mismatchError
	if errors.As(err, &mismatch) {
		err = otherRank(mismatch.differences[0])
	}
	if err = join(err, r.lock.Release(), remove()); err != nil {
		_, _ = r.ranks.Gather(1) // the error of this rank matters more
		return started, fmt.Errorf("taking over the state of rank 0: %w", err)
	}
	return started, nil
}

func (r *run) resumeAndStart(ctx context.Context, dir string) (started int, err error) {
	if err := r.resume(ctx, dir); err != nil {
		return 0, err
	}
	if err := r.applyRate(); err != nil {
		return 0, err
	}
	return r.start(ctx)
}

// shareBlock is the size of a message of the state.
const shareBlock = 1 << 20

// sendState sends the files of a checkpoint of the current state to the other ranks: for each file its size and
// name, and its content. The method begin sends the empty message that ends them.
func (r *run) sendState() (err error) {
	dir, remove, err := files.Scratch("steadyfit-rank-")
	if err != nil {
		return err
	}
	defer func() { err = join(err, remove()) }()
	folder, err := checkpoint.Open(dir, checkpoint.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = join(folder.Lock.Release(), err) }()
	if err = folder.Write(r.state.Step, r.save(files.Disk{}, nil)); err != nil {
		return err
	}
	return filepath.WalkDir(folder.Newest, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return r.sendFile(dir, path)
	})
}

func (r *run) sendFile(dir, path string) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	f, size, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = r.ranks.Share(fmt.Appendf(nil, "%d %s", size, name), 0)
	for err == nil && size > 0 {
		block := make([]byte, min(size, shareBlock))
		if _, err = io.ReadFull(f, block); err == nil {
			_, err = r.ranks.Share(block, 0)
		}
		size -= int64(len(block))
	}
	return err
}

// receiveState writes the state of the first rank to a temporary folder of checkpoints.
func (r *run) receiveState() (dir string, remove func() error, err error) {
	if dir, remove, err = files.Scratch("steadyfit-rank-"); err != nil {
		return "", nil, err
	}
	for n := 0; err == nil; n++ {
		var header []byte
		if header, err = r.ranks.Share(nil, 0); err == nil && len(header) == 0 {
			if n == 0 {
				err = errors.New("rank 0 could not begin; its output has the reason")
			}
			break
		}
		if err == nil {
			err = r.receiveFile(dir, string(header))
		}
	}
	if err != nil {
		return "", nil, join(err, remove())
	}
	return dir, remove, nil
}

func (r *run) receiveFile(dir, header string) error {
	size, name, _ := strings.Cut(header, " ")
	left, err := strconv.ParseInt(size, 10, 64)
	if err != nil || !filepath.IsLocal(name) {
		return fmt.Errorf("an unknown message %q", header)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	for err == nil && left > 0 {
		var block []byte
		if block, err = r.ranks.Share(nil, 0); err == nil && len(block) == 0 {
			err = io.ErrUnexpectedEOF // rank 0 failed
		}
		if err == nil {
			_, err = f.Write(block)
		}
		left -= int64(len(block))
	}
	return errors.Join(err, f.Close())
}
