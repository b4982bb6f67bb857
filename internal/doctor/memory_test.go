package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemoryOfAPlainMachine(t *testing.T) {
	assert.Equal(t, []Check{
		{Name: "machine", Found: "16.0 GiB, of which 12.0 GiB are available"},
		{Name: "limit", Found: "none below the machine's memory"},
	}, checkMemory(box(plain, nil)))
}

func TestMemoryWithoutProc(t *testing.T) {
	for _, c := range checkMemory(box(nil, nil)) {
		assert.NotContains(t, c.Found, "0 B", c.Name)
		assert.LessOrEqual(t, c.Status, Note, c.Name)
	}
}

func TestMemoryFindings(t *testing.T) {
	for _, c := range []struct {
		name  string
		files tree
		env   map[string]string
		want  Check
	}{
		{"little available", tree{"/proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 716800 kB\n"}, nil,
			Check{"", "machine", Warning, "4.0 GiB, of which 700.0 MiB are available", "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
		{"none available", tree{"/proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 102400 kB\n"}, nil,
			Check{"", "machine", Problem, "4.0 GiB, of which 100.0 MiB are available", "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, check(t, checkMemory(box(plain.with(c.files), c.env)), c.want.Name))
		})
	}
}
