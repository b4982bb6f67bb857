package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// savesEnv makes the test binary a program that saves in many threads, in a folder.
const savesEnv = "STEADYFIT_TEST_SAVES"

func init() { asChild(savesEnv, savesChild) }

// savingThreads is less than the number of arenas that malloc has on one core.
const savingThreads = 6

// savesChild returns the memory that malloc keeps after all saves, less what it kept after those of two threads.
func savesChild(dir string) (any, error) {
	ctx := context.Background()
	model, err := savedmodels.Builtin("digits")
	if err != nil {
		return nil, err
	}
	s, err := OpenModel(ctx, model, Options{Device: gpuopts.Options{InterThreads: savingThreads,
		PerSessionThreads: true}})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	// The goroutines save one after the other, and end only after the last one, so that each has a thread.
	end, saved := make(chan struct{}), make(chan error)
	defer close(end)
	var first tfbind.Malloc
	for i := range savingThreads {
		go func() {
			runtime.LockOSThread()
			at := filepath.Join(dir, fmt.Sprint(i))
			f, err := s.freeze(ctx)
			if err == nil {
				err = errors.Join(f.Save(at), f.Close())
			}
			saved <- err
			<-end
		}()
		if err := <-saved; err != nil {
			return nil, err
		}
		if i == 1 {
			first, _ = tfbind.MallocInfo()
		}
	}
	last, _ := tfbind.MallocInfo()
	return memory.Bytes(last.Free - first.Free), nil
}

// SaveV2 fills a buffer of 8 MiB, and malloc keeps one, not one for each thread that saves.
func TestSavesKeepOneBuffer(t *testing.T) {
	if m, _ := tfbind.MallocInfo(); m.Allocator != "glibc" || m.Free < 0 {
		t.Skipf("the malloc of this process is %q, without a statistic of free memory", m.Allocator)
	}
	for _, oneDNN := range []string{"0", "1"} {
		more, log, err := runChild[memory.Bytes](t, savesEnv, t.TempDir(), oneDNNVariable+"="+oneDNN)
		require.NoError(t, err, log)
		t.Logf("oneDNN %s: %v", oneDNN, more)
		assert.Less(t, more, 8*memory.MiB)
	}
}
