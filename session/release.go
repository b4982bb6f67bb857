package session

import (
	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
)

// releaseProfile are the variables of the release profile. TensorFlow's pool for
// large blocks returns nothing to the system, so they come from malloc. glibc would map
// and unmap each block, which costs page faults in every step; instead it keeps freed
// blocks, in the one arena that is not made of heaps of 64 MiB. MALLOC_CONF does the same
// for a preloaded jemalloc.
var releaseProfile = []gpuopts.Variable{
	{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1", For: profileName},
	{Name: "MALLOC_ARENA_MAX", Value: "1", For: profileName},
	{Name: "MALLOC_MMAP_MAX_", Value: "0", For: profileName},
	{Name: "MALLOC_TRIM_THRESHOLD_", Value: "1099511627776", For: profileName},
	{Name: "MALLOC_CONF", Value: allocator.JemallocKeeps, For: profileName},
}

const profileName = "release profile"

// ReleaseProfile lists the environment variables, each as NAME=value, of a process in
// which ResetReload and Trim return the memory that TensorFlow has freed, at about the
// speed of TensorFlow's own pool, which returns none (docs/explanation/recovery.md). It is for Linux
// with glibc or jemalloc.
func ReleaseProfile() []string {
	var list []string
	for _, v := range releaseProfile {
		list = append(list, v.String())
	}
	return list
}

// UseReleaseProfile is UseEnvironment for the variables of ReleaseProfile. A variable with
// another value is an error, and so is a TensorFlow that is open already.
func UseReleaseProfile() error { return startWith(releaseProfile, "session.UseReleaseProfile") }
