package train

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/fit"
	"steadyfit/internal/autotune"
)

// Unless the threads are set, a training measures during the steps whether the calling thread runs
// them faster.
func TestStepsChooseTheirThread(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		live   bool
	}{
		{func(*Config) {}, true},
		{func(c *Config) { c.Autotune = "" }, true},
		{func(c *Config) { c.Session.CallerRuns = true }, false},
	} {
		config := Config{
			Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Prefetch: -1, Loop: fit.Loop{Batch: 32, Epochs: 1},
			Autotune: On, CacheFeatures: "",
		}
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		c.change(&config)
		var live bool
		config.Loop.Hook(fit.Hook{Name: "look", Start: func(_ context.Context, s *fit.State) error {
			_, live = s.Session.(*autotune.Live)
			return nil
		}})
		ran(t, config)
		assert.Equal(t, c.live, live, "%+v", config)
	}
}
