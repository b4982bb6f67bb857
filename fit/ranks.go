package fit

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"

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

// settings returns the options that decide which steps a rank runs, apart from those that identify
// checkpoints. All ranks must have the same options.
func (r *run) settings() ([]byte, error) {
	l := r.loop
	all := map[string]any{
		"{Loop.Batch}": l.Batch, "{Loop.Epochs}": l.Epochs, "{Loop.InitialEpoch}": l.InitialEpoch,
		"{Loop.StepsPerEpoch}":   r.state.StepsPerEpoch,
		"{Loop.ValidationEvery}": l.ValidationEvery,
		"{Loop.Validation}":      l.Validation != nil,
	}
	for _, h := range r.hooks {
		if h.settings != nil {
			all["hook "+h.Name] = h.settings
		}
	}
	return json.Marshal(all)
}

// sameSettings returns an error if the settings of this rank differ from the settings of the first
// rank.
func (r *run) sameSettings() error {
	own, err := r.settings()
	if err != nil {
		return err
	}
	text, err := r.ranks.Share(own, 0)
	if err != nil {
		return err
	}
	var here, first map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(own, &here), json.Unmarshal(text, &first)); err != nil {
		return fmt.Errorf("comparing the ranks: %w", err)
	}
	keys := maps.Clone(first)
	maps.Copy(keys, here)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !bytes.Equal(here[key], first[key]) {
			return otherRank(key, cmp.Or(string(here[key]), "absent"), cmp.Or(string(first[key]), "absent"))
		}
	}
	return nil
}

// otherRank returns the error for a setting that has other values on the first rank.
func otherRank(key, here, first string) error {
	return &option.Error{Option: "Options.Cluster", Reason: fmt.Sprintf("this rank has %s %s, and rank 0 has %s", key,
		here, first), Fix: "give all ranks the same options and data"}
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
		d := mismatch.differences[0]
		err = otherRank(d.key, orAbsent(d.run), orAbsent(d.checkpoint))
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

// sendState sends a checkpoint of the current state to the other ranks.
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
	w := &sharer{RankGroup: r.ranks}
	archive := tar.NewWriter(w)
	err = archive.AddFS(os.DirFS(dir))
	return errors.Join(err, archive.Close(), w.flush())
}

// sharer passes bytes between ranks: what the first rank writes to its sharer, the other ranks read from theirs.
type sharer struct {
	contract.RankGroup
	block []byte
}

func (w *sharer) Write(p []byte) (int, error) {
	w.block = append(w.block, p...)
	if len(w.block) < shareBlock {
		return len(p), nil
	}
	return len(p), w.flush()
}

func (w *sharer) flush() error {
	if len(w.block) == 0 {
		return nil
	}
	_, err := w.Share(w.block, 0)
	w.block = w.block[:0]
	return err
}

// Read receives the bytes that the first rank writes. An empty message is the end.
func (w *sharer) Read(p []byte) (n int, err error) {
	if len(w.block) == 0 {
		if w.block, err = w.Share(nil, 0); err != nil {
			return 0, err
		}
	}
	if len(w.block) == 0 {
		return 0, io.EOF
	}
	n = copy(p, w.block)
	w.block = w.block[n:]
	return n, nil
}

// receiveState writes the state of the first rank to a temporary folder of checkpoints.
func (r *run) receiveState() (dir string, remove func() error, err error) {
	if dir, remove, err = files.Scratch("steadyfit-rank-"); err != nil {
		return "", nil, err
	}
	reader := &sharer{RankGroup: r.ranks}
	if err = unpack(tar.NewReader(reader), dir); err == nil {
		_, err = io.Copy(io.Discard, reader)
	}
	if errors.Is(err, errNothing) {
		err = errors.New("rank 0 could not begin; its output has the reason")
	}
	if err != nil {
		return "", nil, join(err, remove())
	}
	return dir, remove, nil
}

var errNothing = errors.New("an empty archive")

func unpack(archive *tar.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for n := 0; ; n++ {
		header, err := archive.Next()
		switch {
		case err == io.EOF && n == 0:
			return errNothing
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case header.Typeflag == tar.TypeDir:
			if err := root.MkdirAll(header.Name, 0o777); err != nil {
				return err
			}
			continue
		}
		f, err := root.Create(header.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, archive)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}
