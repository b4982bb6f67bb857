package matrix

import "steadyfit/memory"

// limit holds a child to an amount of memory.
type limit interface {
	// apply puts a process that has just been started under the limit.
	apply(pid int) error
	// killed tells whether the kernel has killed a process of it.
	killed() bool
	// kind is "control group" or "RLIMIT_DATA", "" for none.
	kind() string
	bytes() memory.Bytes
	String() string
	close()
}

type noLimit struct{}

func (noLimit) apply(int) error     { return nil }
func (noLimit) killed() bool        { return false }
func (noLimit) kind() string        { return "" }
func (noLimit) bytes() memory.Bytes { return 0 }
func (noLimit) String() string      { return "no limit" }
func (noLimit) close()              {}
