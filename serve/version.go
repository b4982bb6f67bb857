package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"steadyfit/internal/manifest"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// version is a loaded model.
type version struct {
	savedmodels.Version
	model     *savedmodels.Model
	session   *session.Session
	signature *savedmodels.Signature
	inputs    []port
	outputs   []port
	joinable  bool // whether the samples of several calls may be computed together
	// inForms and outForms have a *form for each type of struct.
	inForms, outForms sync.Map

	// Predictor.mu protects these.
	uses  int // calls, and 1 while the version is current
	slots []*slot

	// adapter has the weights of the session; torn is true if a swap has failed. The only run uses them.
	adapter *session.Adapter
	torn    bool
}

// swap gives the session the weights of an adapter.
func (v *version) swap(a *session.Adapter) error {
	if a == v.adapter && !v.torn {
		return nil
	}
	v.torn = true
	if err := v.session.Swap(context.Background(), a); err != nil {
		return err
	}
	v.adapter, v.torn = a, false
	return nil
}

// follow calls Refresh until the context ends.
func (p *Predictor) follow(ctx context.Context) {
	ticker := time.NewTicker(p.o.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := p.Refresh(ctx); err != nil && ctx.Err() == nil {
				p.o.Log.Error("no new version", "error", err)
			}
		}
	}
}

// Refresh loads the version with the largest number in the folder, and passes new calls to it. If a version cannot be
// loaded, Refresh tries the next smaller number, down to the version that serves already. It returns the errors of the
// versions that failed, and tries them again only after one of their files was written. A version with SHA256SUMS is
// loaded once its files have these hashes. If the version that serves was removed, Refresh goes back to the largest
// number that is left. A version that serves is not loaded again when its files change, nor is a model that is no
// folder of versions.
func (p *Predictor) Refresh(ctx context.Context) error {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	return p.refresh(ctx)
}

func (p *Predictor) refresh(ctx context.Context) error {
	p.mu.Lock()
	current, closed := p.current, p.closed
	p.mu.Unlock()
	if closed {
		return fmt.Errorf("refresh: %w", ErrClosed)
	}
	found, err := savedmodels.Versions(p.dir)
	if err != nil {
		return fmt.Errorf("%s: %w", p.dir, err)
	}
	if len(found) == 0 && current == nil {
		found = append(found, savedmodels.Version{Path: p.dir})
	}
	var errs []error
	for _, v := range slices.Backward(found) {
		if current != nil && v.Number == current.Number {
			break
		}
		files := stateOf(v.Path)
		if files == p.failed[v.Number] {
			continue
		}
		var next *version
		p.onThread(func() { next, err = p.load(ctx, v) })
		if err == nil {
			p.serve(next)
			p.o.Log.Info("serving", "model", v.Path)
			break
		}
		if v.Path == p.dir && errors.Is(err, savedmodels.ErrNotSavedModel) {
			err = fmt.Errorf("%w; there are no numbered versions in it either", err)
		}
		errs = append(errs, of(v.Path, err))
		if ctx.Err() != nil {
			break // the version may be right
		}
		p.failed[v.Number] = files
	}
	return errors.Join(errs...)
}

// Promote moves a SavedModel into the folder of versions, which must be on the same file system, as a number above the
// one that serves, and passes new calls to it. The number 0 stands for the next free one of the folder; a number that
// is taken is an error. Promote refuses a model with other inputs than those of the version that serves, and a
// Predictor of a single model, before it moves anything. If the model does not serve then, Promote moves it back. It
// then removes the oldest versions (Options.Keep).
func (p *Predictor) Promote(ctx context.Context, model string, number int64) error {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	number, err := p.promote(ctx, model, number)
	if err != nil {
		return fmt.Errorf("promote %w", of(model, err))
	}
	found, err := savedmodels.Versions(p.dir)
	found = slices.DeleteFunc(found, func(v savedmodels.Version) bool {
		return v.Number > number || stateOf(v.Path) == p.failed[v.Number]
	})
	for ; p.o.Keep > 0 && len(found) > p.o.Keep; found = found[1:] {
		err = errors.Join(err, os.RemoveAll(found[0].Path))
	}
	if err != nil {
		p.o.Log.Error("old versions are left", "error", err)
	}
	return nil
}

func (p *Predictor) promote(ctx context.Context, model string, number int64) (int64, error) {
	found, now, err := p.folder()
	if err != nil {
		return 0, err
	}
	if number != 0 && number <= now.Number {
		return 0, fmt.Errorf("expected a number above %d, which serves, got %d", now.Number, number)
	}
	next, err := p.read(ctx, savedmodels.Version{Path: model})
	if err != nil {
		return 0, err
	}
	if inputs, want := next.takes(), now.takes(); inputs != want {
		return 0, fmt.Errorf("the model takes %s, and version %d, which serves, takes %s", inputs, now.Number, want)
	}
	free := number == 0
	for _, v := range append(found, now.Version) {
		if free {
			number = max(number, v.Number+1)
		}
	}
	for ; ; number++ {
		delete(p.failed, number) // of another model
		err = p.move(ctx, model, filepath.Join(p.dir, strconv.FormatInt(number, 10)), number, number)
		if !free || !errors.Is(err, fs.ErrExist) {
			return number, err
		}
	}
}

// takes describes the inputs.
func (v *version) takes() string {
	var texts []string
	for _, p := range v.inputs {
		texts = append(texts, fmt.Sprintf("%s (%s %v)", p.Name, p.DType, p.Shape))
	}
	return strings.Join(texts, ", ")
}

// Rollback moves the version that serves to a folder that does not exist yet, and passes new calls to the version
// before it. If there is none, the error is ErrNoVersion. The Predictor must have a folder of versions.
func (p *Predictor) Rollback(ctx context.Context, to string) error {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	found, now, err := p.folder()
	if err == nil {
		at := slices.IndexFunc(found, func(v savedmodels.Version) bool { return v.Number == now.Number })
		if err = ErrNoVersion; at >= 1 {
			err = p.move(ctx, now.Path, to, 0, now.Number-1)
		}
	}
	if err != nil {
		return fmt.Errorf("rollback %s: %w", p.dir, err)
	}
	return nil
}

// folder returns the versions in the folder and the one that serves. The caller has locked refreshing.
func (p *Predictor) folder() (found []savedmodels.Version, now *version, err error) {
	p.mu.Lock()
	now = p.current
	p.mu.Unlock()
	switch {
	case now == nil:
		return nil, nil, ErrClosed
	case now.Path == p.dir:
		return nil, nil, fmt.Errorf("%s is a single model; open the folder of its versions", p.dir)
	}
	found, err = savedmodels.Versions(p.dir)
	return found, now, err
}

// move renames a folder. If then no version from least to most serves, it renames the folder back. The caller has
// locked refreshing.
func (p *Predictor) move(ctx context.Context, from, to string, least, most int64) error {
	switch err := os.Rename(from, to); {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w; choose one that is not taken", err)
	case errors.Is(err, syscall.EXDEV):
		return fmt.Errorf("%w; it must be on the file system of the versions", err)
	case err != nil:
		return err
	}
	err := p.refresh(ctx)
	if now := p.Version(); now < least || now > most {
		return errors.Join(fmt.Errorf("%s was moved back, because version %d serves", from, now), err, os.Rename(to, from))
	}
	if err != nil {
		p.o.Log.Error("other versions cannot be loaded", "error", err)
	}
	return nil
}

// of returns an error of a folder, which begins with its path.
func of(path string, err error) error {
	if strings.HasPrefix(err.Error(), path+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// stateOf describes the files of a folder. It changes if one of them is written.
func stateOf(dir string) string {
	state := "."
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error { // what cannot be read does not count
		if err == nil {
			if info, err := e.Info(); err == nil {
				state += fmt.Sprintf("%s %d %v\n", path, info.Size(), info.ModTime())
			}
		}
		return nil
	})
	return state
}

// complete returns an error if files of a version differ from its hashes, as in a folder that is being copied.
func complete(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, manifest.Name)); err != nil {
		return nil
	}
	_, err := manifest.Verify(ctx, dir)
	if d := (*manifest.Damage)(nil); errors.As(err, &d) && len(d.Missing)+len(d.Differs) == 0 {
		return nil // other programs may add files
	}
	return err
}

// onThread runs a function on the OS thread that loads and closes the versions. In glibc, threads allocate from arenas
// of their own, and an arena keeps some pages of each model that was loaded in it. Threads of Go would leave such pages
// in more and more arenas.
func (p *Predictor) onThread(f func()) {
	done := make(chan struct{})
	p.thread <- func() { f(); close(done) }
	<-done
}

// runThread runs the functions of onThread until Close.
func (p *Predictor) runThread() {
	runtime.LockOSThread()
	for f := range p.thread {
		f()
	}
}

// read opens a version without its session.
func (p *Predictor) read(ctx context.Context, of savedmodels.Version) (*version, error) {
	if err := complete(ctx, of.Path); err != nil {
		return nil, err
	}
	model, err := savedmodels.Open(of.Path)
	if err != nil {
		return nil, err
	}
	v := &version{Version: of, model: model}
	if v.signature, err = model.Signature(cmp.Or(p.o.Signature, model.Roles.Predict, "predict")); err != nil {
		return nil, err
	}
	return v, v.describe()
}

// load opens a version and computes a sample of zeros, so that TensorFlow prepares the graph before the first call.
func (p *Predictor) load(ctx context.Context, of savedmodels.Version) (*version, error) {
	v, err := p.read(ctx, of)
	if err != nil {
		return nil, err
	}
	o := p.o.Session
	o.ReadOnly, o.Only = true, []string{v.signature.Name}
	if asks, _ := o.Device.ForGPU(); len(asks) == 0 {
		o.CallerRuns = true
	}
	if _, opened := tfprocess.Environment(); !opened && o.Device.LogLevel == "" {
		if err := tfprocess.SetLogLevel(tfprocess.LogWarnings); err != nil {
			return nil, err
		}
	}
	if v.session, err = session.OpenModel(ctx, v.model, o); err != nil {
		return nil, err
	}
	for range p.o.Parallel {
		step, err := v.session.Prepare(v.signature.Name)
		if err != nil {
			return nil, errors.Join(err, v.session.Close())
		}
		v.slots = append(v.slots, newSlot(v, step))
	}
	v.slots[0].warm()
	return v, nil
}

// serve passes new calls to a version, or ends them if it is nil.
func (p *Predictor) serve(next *version) {
	p.mu.Lock()
	old := p.current
	if p.current = next; next != nil {
		next.uses = 1
		p.versions.Add(1)
	}
	p.mu.Unlock()
	if old != nil {
		p.release(old)
	}
}

// close frees a version that no call uses.
func (v *version) close(p *Predictor) {
	defer p.versions.Done()
	var errs []error
	for _, s := range v.slots {
		errs = append(errs, s.step.Close())
	}
	if err := errors.Join(append(errs, v.session.Close())...); err != nil {
		p.o.Log.Error("closing a version failed", "model", v.Path, "error", err)
	}
	tfbind.TrimMalloc()
}
