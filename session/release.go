package session

import (
	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
)

// releaseProfile are the variables of the release profile. TensorFlow's pool for
// large blocks never gives anything back, so they come from malloc; glibc would map
// each of them anew and unmap it again, which costs page faults in every step, so it
// keeps what is freed, in the one arena that is not made of heaps of 64 MiB. The
// variable of jemalloc has it do the same where it is preloaded.
var releaseProfile = []gpuopts.Variable{
	{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1", For: profileName},
	{Name: "MALLOC_ARENA_MAX", Value: "1", For: profileName},
	{Name: "MALLOC_MMAP_MAX_", Value: "0", For: profileName},
	{Name: "MALLOC_TRIM_THRESHOLD_", Value: "1099511627776", For: profileName},
	{Name: "MALLOC_CONF", Value: allocator.JemallocKeeps, For: profileName},
}

const profileName = "release profile"

// ReleaseProfile lists the environment variables, each as NAME=value, of a process in
// which ResetReload and Trim give back what TensorFlow has freed, at about the speed
// of TensorFlow's own pool, which gives nothing back. What it costs was measured, see
// docs/explanation/recovery.md. It is made for Linux with glibc, and for jemalloc.
func ReleaseProfile() []string {
	var list []string
	for _, v := range releaseProfile {
		list = append(list, v.String())
	}
	return list
}

// UseReleaseProfile is UseEnvironment for the variables of ReleaseProfile: it has the
// process run its program again, from the start, unless they are set. It is the first
// thing that main calls.
//
// A variable of the profile that is set to something else is an error, and so is a
// TensorFlow that is open already.
func UseReleaseProfile() error { return startWith(releaseProfile, "session.UseReleaseProfile") }
