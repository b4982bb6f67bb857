package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"steadyfit/internal/files"
	"steadyfit/train"
)

// The words of --auto.
const (
	autoOn        = "on"
	autoPrecision = "precision"
	autoOff       = "off"
	autoKept      = "kept" // of bench
)

// autoFlags are the flags of the measured choice of how a training runs.
type autoFlags struct{ auto, cache string }

func (a *autoFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&a.auto, "auto", autoOn, "how steps run, where no flag says it: on (measure at the start what is fastest, in at most 2% of the training and 20s, and keep it), precision (16 bits among it, which changes the result), off (as exported)")
	a.registerCache(flags)
}

func (a *autoFlags) registerCache(flags *pflag.FlagSet) {
	flags.StringVar(&a.cache, "cache", "", "folder for what --auto has measured; default steadyfit/tune in your cache folder")
}

// parse returns what the flags say, which is one of the words. given tells which flags were
// given: what they say is fixed.
func (a *autoFlags) parse(given func(flag string) bool, words ...string) (train.Autotune, error) {
	if !slices.Contains(words, a.auto) {
		return train.Autotune{}, usagef("--auto %s: expected %s", a.auto, strings.Join(words, ", "))
	}
	t := train.Autotune{Mode: train.AutotuneOn, Cache: a.cache, Fixed: train.Fixed{
		StepsPerExecution: given("fuse-steps"), Compiled: given("compiled"), Precision: given("precision"),
		Threads: given("intra-threads") || given("inter-threads"),
	}}
	switch a.auto {
	case autoOff:
		t.Mode = train.AutotuneOff
	case autoPrecision:
		t.Mode = train.AutotunePrecision
	}
	return t, nil
}

// checkCache refuses a folder that was named and cannot take what is to be measured. fit only
// warns, since the choices in a folder that is only read are as good.
func (a *autoFlags) checkCache() error {
	if a.cache == "" || a.auto == autoOff || a.auto == autoKept {
		return nil
	}
	err := os.MkdirAll(a.cache, 0o755)
	if err == nil {
		err = files.Writable(a.cache, 0)
	}
	if err != nil {
		return unusable(fmt.Errorf("--cache %s: what is measured cannot be kept there: %w; give it a folder that can be written", a.cache, err))
	}
	return nil
}
