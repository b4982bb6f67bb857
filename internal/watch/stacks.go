package watch

import (
	"os"

	"steadyfit/memory"
)

// profileSettings make jemalloc record the stack of one allocation in 2^19 bytes.
const profileSettings = "prof:true,lg_prof_sample:19"

// stacksEnvironment returns the variables with which probe/stacks.py finds native stacks.
func stacksEnvironment() ([]string, error) {
	preload, err := preloaded()
	settings := profileSettings
	if before := os.Getenv("MALLOC_CONF"); before != "" {
		settings = before + "," + settings
	}
	return []string{preload, "MALLOC_CONF=" + settings, "STEADYFIT_WATCH_STACKS=1"}, err
}

// stacks returns the growth of the native stacks per step, or per minute, of the process in which they grow most.
func (r *recorder) stacks(kind string, stepSeconds float64) (list []Stack) {
	var most []stack
	for _, p := range r.peers {
		if len(p.Stacks) > 0 && (most == nil || p.Stacks[0].Bytes > most[0].Bytes) {
			most = p.Stacks
		}
	}
	for _, s := range most {
		steps := s.Seconds / stepSeconds
		if s.Steps[kind] > 0 {
			steps = float64(s.Steps[kind])
		}
		list = append(list, Stack{Growth: memory.Bytes(s.Bytes / steps), Functions: s.Functions})
	}
	return list
}
