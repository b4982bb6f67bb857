package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"steadyfit/cluster"
	"steadyfit/gpuopts"
	"steadyfit/option"
)

// checkCluster examines the variables that make fit a rank of a cluster.
func checkCluster(m machine) []Check {
	c, err := cluster.FromEnvironment(func(name string) (string, bool) { value, ok := m.env[name]; return value, ok })
	var invalid *option.Error
	if errors.As(err, &invalid) {
		found := *invalid
		found.Fix = ""
		return []Check{problem("cluster", found.Error(), cmp.Or(invalid.Fix, "correct the variable or unset it"))}
	}
	if c == nil {
		return nil
	}
	_, port, err := net.SplitHostPort(c.Workers[c.Rank])
	if err != nil {
		return []Check{problem("cluster", err.Error(), "correct the address")}
	}
	return []Check{note("cluster",
		fmt.Sprintf("fit is %v; its server listens on port %s of all addresses, "+
			"without encryption or authentication: whoever reaches the port can run graphs", c, port),
		"let only the other ranks reach the port (docs/how-to/several-machines.md)")}
}

// checkVariables reports the variables whose values TensorFlow ignores.
func checkVariables(m machine) (checks []Check) {
	var environ []string
	for _, name := range slices.Sorted(maps.Keys(m.env)) {
		environ = append(environ, name+"="+m.env[name])
	}
	warnings, _ := gpuopts.Options{}.Check(environ) // only an option can contradict a variable
	for _, w := range warnings {
		checks = append(checks, warning(w.Option, w.Reason, "correct it or `unset "+w.Option+"`"))
	}
	if checks == nil {
		return []Check{ok("variables", "none that TensorFlow ignores")}
	}
	return checks
}
