package session

import (
	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
)

// releaseProfile are the variables of the release profile. TensorFlow's pool for large blocks
// returns nothing to the system, so the profile makes them come from malloc. By default glibc
// would map and unmap each block, which costs page faults in every step. The profile makes it
// keep freed blocks in the main arena, which has no heaps of 64 MiB. MALLOC_CONF does the same
// for a preloaded jemalloc.
var releaseProfile = []gpuopts.Variable{
	{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1", For: profileName},
	{Name: "MALLOC_ARENA_MAX", Value: "1", For: profileName},
	{Name: "MALLOC_MMAP_MAX_", Value: "0", For: profileName},
	{Name: "MALLOC_TRIM_THRESHOLD_", Value: "1099511627776", For: profileName},
	{Name: "MALLOC_CONF", Value: allocator.JemallocKeeps, For: profileName},
}

const profileName = "release profile"

// ReleaseProfile lists environment variables, each as NAME=value. In a process with these
// variables, ResetReload and Trim return the memory that TensorFlow has freed. The speed is
// about that of TensorFlow's own pool, which returns none (docs/explanation/recovery.md). The
// profile is for Linux with glibc or jemalloc.
func ReleaseProfile() []string {
	var list []string
	for _, v := range releaseProfile {
		list = append(list, v.String())
	}
	return list
}

// UseReleaseProfile is like UseEnvironment for the variables of ReleaseProfile. It fails if a
// variable has a different value or if TensorFlow is already open.
func UseReleaseProfile() error { return startWith(releaseProfile, "session.UseReleaseProfile") }
