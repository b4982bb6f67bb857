package autotune

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Only a training with large convolutions begins with oneDNN, and only if TensorFlow would leave
// oneDNN off and the options leave the choice.
func TestPrior(t *testing.T) {
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", "")
	byDefault := oneDNNByDefault()
	m, err := savedmodels.Builtin("image-224")
	require.NoError(t, err)
	images := func(size, channels int) data.Dataset {
		ds, err := data.New("images", data.Field{Name: "x", Array: data.Array{Shape: []int{2, size, size, channels}, Values: make([]uint8, 2*size*size*channels)}})
		require.NoError(t, err)
		return ds
	}
	for _, c := range []struct {
		name     string
		variable string
		change   func(p *Plan)
		want     string
	}{
		{"off", "0", func(*Plan) {}, "on"},
		{"off in words", "false", func(*Plan) {}, "on"},
		{"already on", "1", func(*Plan) {}, ""},
		{"the processor decides", "", func(*Plan) {}, map[bool]string{false: "on"}[byDefault]},
		{"fixed by the user", "0", func(p *Plan) { p.Limits.OneDNN = false }, ""},
		{"set by the user", "0", func(p *Plan) { p.Options.Device.OneDNN = "off" }, ""},
		{"no restart is allowed", "0", func(p *Plan) { p.Limits.Restart = false }, ""},
		{"deterministic", "0", func(p *Plan) { p.Options.Device.Deterministic = true }, ""},
		{"small images", "0", func(p *Plan) { p.Data = images(28, 3) }, ""},
		{"no kernel for the channels", "0", func(p *Plan) { p.Data = images(224, 1) }, ""},
		{"a dense model", "0", func(p *Plan) { p.Model, p.Data = dense(t) }, ""},
		{"too little memory", "0", func(p *Plan) { p.Batch = 1 << 40 }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TF_ENABLE_ONEDNN_OPTS", c.variable)
			p := Plan{Model: m, Options: session.Options{}, Data: images(224, 3), Batch: 32, Steps: 1, Limits: Limits{OneDNN: true, Restart: true}}
			c.change(&p)
			assert.Equal(t, Configuration{OneDNN: c.want}, p.Prior())
		})
	}
}

// TensorFlow decides as this package does.
func TestOneDNNByDefault(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	on, known := tfprocess.OneDNN()
	require.True(t, known)
	assert.Equal(t, on, oneDNNByDefault())
}
