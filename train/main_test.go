package train

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// childTests are the trainings of tests in child processes, by the name in Config.Child.
var childTests = map[string]func(spec []byte) (Config, error){}

func TestMain(m *testing.M) {
	if os.Getenv(hostPlainEnv) != "" {
		os.Exit(m.Run())
	}
	Init(func(spec []byte) (Config, error) {
		var named struct{ Test string }
		if err := json.Unmarshal(spec, &named); err != nil {
			return Config{}, err
		}
		return childTests[named.Test](spec)
	})
	if dir := os.Getenv(hostEnv); dir != "" {
		if err := host(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
