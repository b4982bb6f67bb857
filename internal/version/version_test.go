package version

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDescribe(t *testing.T) {
	build := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "439572c4b1aee2f0b1c2"}
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	tag := "v" + Number
	for want, got := range map[string]string{
		Number:                                         describe(build(tag, revision), ""),
		Number + " (commit 439572c4b1ae)":              describe(build("v0.0.0-2026-439572c4b1ae", revision), ""),
		Number + " (commit unknown)":                   describe(build("(devel)"), ""),
		Number + " (commit 439572c4b1ae-dirty)":        describe(build("(devel)"), "439572c4b1ae-dirty"),
		Number + " (commit 439572c4b1ae with changes)": describe(build(tag+"+dirty", revision, modified), ""),
	} {
		assert.Equal(t, want, got)
	}
	assert.Equal(t, Number, describe(build("(devel)"), tag), "an image of a release")
	assert.Equal(t, Number+" (commit "+tag+"-dirty)", describe(build("(devel)"), tag+"-dirty"))
}

// The exporter reads the same file, through a link.
func TestExporterHasTheVersion(t *testing.T) {
	text, err := os.ReadFile("../../scripts/steadyfit_export/VERSION")
	require.NoError(t, err)
	require.Equal(t, file, string(text))
	require.Regexp(t, `^\d+\.\d+\.\d+$`, Number)
}
