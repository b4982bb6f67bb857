package session

import (
	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
)

// releaseProfile makes TensorFlow allocate large blocks with malloc instead of its own pool,
// which returns nothing to the system. It makes glibc keep freed blocks in the main arena,
// which has no heaps of 64 MiB. By default glibc unmaps each block, which costs page faults in
// every step. MALLOC_CONF does the same for a preloaded jemalloc.
var releaseProfile = []gpuopts.Variable{
	{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1", For: profileName},
	{Name: "MALLOC_ARENA_MAX", Value: "1", For: profileName},
	{Name: "MALLOC_MMAP_MAX_", Value: "0", For: profileName},
	{Name: "MALLOC_TRIM_THRESHOLD_", Value: "1099511627776", For: profileName},
	{Name: "MALLOC_CONF", Value: allocator.JemallocKeeps, For: profileName},
}

const profileName = "release profile"

// UseReleaseProfile works like UseEnvironment with the variables of the release profile. With
// them, a reload and tfbind.TrimMalloc return the memory that TensorFlow has freed, at about the speed of
// TensorFlow's own pool, which returns none (docs/explanation/recovery.md). The profile is for
// Linux with glibc or jemalloc.
func UseReleaseProfile() error { return startWith(releaseProfile, "session.UseReleaseProfile") }
