package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCluster(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want []Check
	}{
		"none":     {map[string]string{"PATH": "/bin"}, nil},
		"one rank": {map[string]string{"PET_NNODES": "1"}, nil},
		"two ranks": {map[string]string{"TF_CONFIG": `{"cluster":{"worker":["a:2222","b:2223"]},"task":{"type":"worker","index":1}}`}, []Check{{Name: "cluster", Status: Note,
			Found: "fit is rank 1 of 2, from TF_CONFIG; its server listens on port 2223 of all addresses, without encryption " +
				"or authentication: whoever reaches the port can run graphs",
			Fix: "let only the other ranks reach the port (docs/how-to/several-machines.md)"}}},
		"an evaluator": {map[string]string{"TF_CONFIG": `{"cluster":{"worker":["a:2222","b:2223"]},"task":{"type":"evaluator","index":0}}`}, []Check{{Name: "cluster", Status: Problem,
			Found: "TF_CONFIG: this task is an evaluator, and validation is a part of the training",
			Fix:   "remove the evaluator from the job"}}},
		"no JSON": {map[string]string{"TF_CONFIG": "x"}, []Check{{Name: "cluster", Status: Problem,
			Found: "TF_CONFIG: cannot be read as JSON of a cluster: invalid character 'x' looking for beginning of value",
			Fix:   "correct the variable or unset it"}}},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, checkCluster(box(plain, c.env))) })
	}
}

func TestVariables(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        Check
	}{
		{"TF_FORCE_GPU_ALLOW_GROWTH", "1", Check{Status: Warning,
			Found: `TensorFlow accepts only true and false, and ignores "1" (gpu_bfc_allocator.cc)`, Fix: "correct it or `unset TF_FORCE_GPU_ALLOW_GROWTH`"}},
	} {
		c.want.Name = c.name
		assert.Equal(t, []Check{c.want}, checkVariables(box(plain, map[string]string{c.name: c.value, "PATH": "/bin"})))
	}
	// Variables of Terraform begin with TF_, too.
	env := map[string]string{"TF_VAR_password": "secret", "TF_ENABLE_ONEDNN_OPTS": "1",
		"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
	assert.Equal(t, []Check{{Name: "variables", Found: "none that TensorFlow ignores"}}, checkVariables(box(plain, env)))
}
