// Package version has the version of this module. The file VERSION is the only place that states it; the
// exporter, the wheel and the archives read it, too.
package version

import (
	_ "embed"
	"runtime/debug"
	"strings"
)

//go:embed VERSION
var file string

// Number is the version of the next or the current release, such as 0.1.0.
var Number = strings.TrimSpace(file)

// commit is set by the linker where the program is built without the repository: the tag of a release, or a commit.
var commit string

// String returns the version of a release, or the version and the commit of another build.
func String() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return describe(build, commit)
}

func describe(build *debug.BuildInfo, commit string) string {
	if tag := "v" + Number; commit == tag || commit == "" && build.Main.Version == tag {
		return Number
	}
	changed := ""
	for _, s := range build.Settings {
		switch {
		case s.Key == "vcs.revision" && commit == "":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = " with changes"
		}
	}
	if commit == "" {
		return Number + " (commit unknown)"
	}
	return Number + " (commit " + commit + changed + ")"
}
