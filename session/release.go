package session

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"steadyfit/tfbind"
)

// releaseProfile are the variables of the release profile. TensorFlow's pool for
// large blocks never gives anything back, so they come from malloc; glibc would map
// each of them anew and unmap it again, which costs page faults in every step, so it
// keeps what is freed, in the one arena that is not made of heaps of 64 MiB. The
// variable of jemalloc has it do the same where it is preloaded.
var releaseProfile = [][2]string{
	{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1"},
	{"MALLOC_ARENA_MAX", "1"},
	{"MALLOC_MMAP_MAX_", "0"},
	{"MALLOC_TRIM_THRESHOLD_", "1099511627776"},
	{"MALLOC_CONF", "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"},
}

// ReleaseProfile lists the environment variables, each as NAME=value, of a process in
// which ResetReload and Trim give back what TensorFlow has freed, at about the speed
// of TensorFlow's own pool, which gives nothing back. What it costs was measured, see
// docs/resilience.md. It is made for Linux with glibc, and for jemalloc.
func ReleaseProfile() []string {
	var list []string
	for _, v := range releaseProfile {
		list = append(list, v[0]+"="+v[1])
	}
	return list
}

// UseReleaseProfile has the process run its program again, from the start and with
// the same arguments, under ReleaseProfile: malloc and TensorFlow read their
// variables only once. It returns nil where that has been done, so it is the first
// thing that main calls, before flags and files: nothing else of the process is kept.
// Processes that it starts inherit the profile.
//
// A variable of the profile that is set to something else is an error, and so is a
// TensorFlow that is open already.
func UseReleaseProfile() error {
	var missing []string
	for _, v := range releaseProfile {
		have, set := os.LookupEnv(v[0])
		if set && have != v[1] {
			return fmt.Errorf("release profile: %s is %q in the environment, and would have to be %q; unset it", v[0], have, v[1])
		}
		if !set {
			missing = append(missing, v[0]+"="+v[1])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if tfbind.Loaded() {
		return fmt.Errorf("release profile: TensorFlow has been opened without %s; call UseReleaseProfile first in main", strings.Join(missing, " "))
	}
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, slices.Concat(os.Environ(), missing))
	}
	return fmt.Errorf("release profile: starting %s anew: %w", path, err)
}
