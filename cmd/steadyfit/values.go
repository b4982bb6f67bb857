package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"steadyfit/fit"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
	"steadyfit/train"
)

// value is a pflag.Value that calls a function.
type value struct {
	kind, text string
	set        func(text string) error
}

// newValue returns a flag with the default text. kind is the placeholder of the value in the
// help.
func newValue(kind, text string, set func(text string) error) *value { return &value{kind, text, set} }

func (v *value) Type() string   { return v.kind }
func (v *value) String() string { return v.text }

// Set ignores an empty text if the flag has no default.
func (v *value) Set(text string) error {
	if text == "" && v.text == "" {
		return nil
	}
	err := v.set(text)
	if err == nil {
		v.text = text
	}
	return err
}

// newParsed returns a flag that sets *p to the result of parse.
func newParsed[T any](p *T, kind string, parse func(string) (T, error)) *value {
	return newValue(kind, "", func(text string) (err error) {
		*p, err = parse(text)
		return err
	})
}

// choice is a flag with a word for each possible value.
type choice[T comparable] struct {
	*value
	words  []string
	values []T
}

// newChoice returns a flag that sets *p. words are separated by blanks.
func newChoice[T comparable](p *T, words string, values ...T) choice[T] {
	c := choice[T]{words: strings.Fields(words), values: values}
	c.value = newValue(strings.ReplaceAll(words, " ", "|"), c.word(fmt.Sprint(*p)), func(text string) error {
		i := slices.Index(c.words, text)
		if i < 0 {
			return fmt.Errorf("expected %s", texts.List(c.words, "or"))
		}
		*p = values[i]
		return nil
	})
	return c
}

// as replaces the placeholder of the value in the help. Without as, the placeholder lists the words.
func (c choice[T]) as(kind string) choice[T] {
	c.kind = kind
	return c
}

// word returns the word for a formatted value; without such a word, it returns the value.
func (c choice[T]) word(value string) string {
	if i := slices.IndexFunc(c.values, func(v T) bool { return fmt.Sprint(v) == value }); i >= 0 {
		return c.words[i]
	}
	return value
}

func newCount(p *int, least int) *value { return newRange(p, least, math.MaxInt) }

// newRange returns a flag for a number from least to most.
func newRange(p *int, least, most int) *value {
	return newValue("int", strconv.Itoa(*p), func(text string) error {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil:
			return errors.New("expected a whole number")
		case most == math.MaxInt && n < least:
			return fmt.Errorf("expected at least %d", least)
		case n < least || n > most:
			return fmt.Errorf("expected %d to %d", least, most)
		}
		*p = n
		return nil
	})
}

// maxBatch is the largest number of samples of a step, since TensorFlow's kernels count them in 32 bits.
const maxBatch = math.MaxInt32

// newDuration returns a flag for a duration that is not below least.
func newDuration(p *time.Duration, least time.Duration) *value {
	text := p.String()
	if *p == 0 {
		text = "0" // the help shows no default of 0
	}
	return newValue("duration", text, func(text string) error {
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			return errors.New(expected["duration"])
		case d < least && least == 0:
			return errors.New("expected 0 or more")
		case d < least:
			return fmt.Errorf("expected at least %v", least)
		}
		*p = d
		return nil
	})
}

var errNoSize = errors.New("expected a size, such as 600MiB, 1.5GiB or 4096")

// newLayer returns the kinds of memory that a budget can limit.
func newLayer(p *memory.Layer) choice[memory.Layer] {
	return newChoice(p, "rss anon cgroup", memory.RSS, memory.Anon, memlayer.CgroupWorkingSet)
}

// newBudget returns a flag for a size and the kind of memory that it limits.
func newBudget(b *train.Budget) *value {
	layer := newLayer(&b.Layer)
	return newValue("size[:"+layer.kind+"]", "", func(text string) error {
		size, of, named := strings.Cut(text, ":")
		if !named {
			of = "rss"
		}
		n, err := texts.ParseBytes[memory.Bytes](size)
		switch {
		case err != nil:
			return errNoSize
		case n == 0:
			return errors.New("expected more than 0; leave it out to have no limit")
		case n < memory.MiB:
			meant := ""
			if f, err := strconv.ParseFloat(strings.TrimSpace(size), 64); err == nil {
				meant = fmt.Sprintf("; a number alone is in bytes: did you mean %gMiB?", f)
			}
			return fmt.Errorf("%v is too small for any training%s", n, meant)
		}
		b.Limit = n
		return layer.set(of)
	})
}

// optional is a flag with a value that may be left out. bare is the value of the flag alone.
type optional struct {
	*value
	bare string
}

func (s *settings) setResume(text string) error {
	if !slices.Contains([]string{"true", "false", "anyway"}, text) {
		return errors.New("expected anyway, true or false")
	}
	s.Resume, s.Loop.ResumeAnyway = text != "false", text == "anyway"
	return nil
}

// defaultDeadline is the longest time without a step in a supervised training.
const defaultDeadline = 5 * time.Minute

func (s *settings) setSupervise(text string) error {
	switch d, err := time.ParseDuration(text); {
	case text == "true":
		s.Supervise, s.Supervisor.Deadline = train.Always, defaultDeadline
	case text == "false":
		s.Supervise, s.Supervisor.Deadline = "", 0
	case err != nil || d <= 0:
		return errors.New("expected a duration above 0, as in 30s or 5m, or false")
	default:
		s.Supervise, s.Supervisor.Deadline = train.Always, d
	}
	return nil
}

// newInterval returns a flag for a number of steps or epochs. It sets the unused variable to 0.
func newInterval(steps, epochs *int, text string) *value {
	return newValue("Nsteps|Nepochs", text, func(text string) error {
		digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz ")
		if n, err := strconv.Atoi(digits); err == nil && n > 0 {
			switch strings.TrimSpace(text[len(digits):]) {
			case "steps", "step":
				*steps, *epochs = n, 0
				return nil
			case "epochs", "epoch":
				*steps, *epochs = 0, n
				return nil
			}
		}
		return errors.New("expected a number of steps or epochs, as in 500steps or 2epochs")
	})
}

// expected describes the values of flags of package pflag, by their type.
var expected = map[string]string{
	"bool":     "expected true or false",
	"int":      "expected a whole number",
	"int64":    "expected a whole number",
	"uint64":   "expected a whole number, 0 or more",
	"intSlice": "expected whole numbers, as in 0,1",
	"float64":  "expected a number",
	"duration": "expected a duration, as in 30s or 5m",
}

// flagError rewrites the error of an invalid value. It returns other errors unchanged.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag, text, cause := invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap()
	if text == "" || strings.ContainsAny(text, " \t\n") {
		text = strconv.Quote(text)
	}
	if why, ok := expected[flag.Value.Type()]; ok {
		if _, ours := flag.Value.(*value); !ours {
			cause = errors.New(why)
		}
	}
	return fmt.Errorf("--%s %s: %w", flag.Name, text, cause)
}

func (s *settings) setValidation(text string) error {
	s.Validation, s.ValidationFraction = "", 0
	fraction, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		s.Validation = text
	case !(fraction > 0 && fraction < 1):
		return errors.New("expected a fraction between 0 and 1, or a file")
	default:
		s.ValidationFraction = fraction
	}
	return nil
}

func (s *settings) setImageSize(text string) error {
	height, width, both := strings.Cut(text, "x")
	if !both {
		width = height
	}
	h, heightErr := strconv.Atoi(height)
	w, widthErr := strconv.Atoi(width)
	if heightErr != nil || widthErr != nil || h < 1 || w < 1 {
		return errors.New("expected pixels, as in 224 or 240x320 (height by width)")
	}
	s.Data.Height, s.Data.Width = h, w
	return nil
}

func (s *settings) setScale(text string) error {
	low, high, both := strings.Cut(text, ",")
	l, lowErr := strconv.ParseFloat(strings.TrimSpace(low), 32)
	h, highErr := strconv.ParseFloat(strings.TrimSpace(high), 32)
	if !both || lowErr != nil || highErr != nil {
		return errors.New("expected two numbers, as in 0,1 or -1,1")
	}
	s.Data.Scale = &[2]float64{l, h}
	return nil
}

func (s *settings) setInputs(text string) error {
	items, err := csv.NewReader(strings.NewReader(text)).Read()
	input := ""
	if s.Data.Inputs == nil {
		s.Data.Inputs = map[string][]string{}
	}
	for _, column := range items {
		if name, first, ok := strings.Cut(column, "="); ok {
			input, column = name, first
		}
		if input == "" {
			return fmt.Errorf("expected INPUT=COLUMN,... with the name of an input of the model, found %q", column)
		}
		s.Data.Inputs[input] = append(s.Data.Inputs[input], column)
	}
	return err
}

func (s *settings) setLearningRate(text string) (err error) {
	s.Loop.LearningRateText = text
	s.Loop.LearningRate, err = fit.ParseSchedule(text)
	return err
}

// pairs adds numbers by name to a map. form describes a pair, and words are values that are no numbers.
func pairs(form string, to *map[string]float64, words map[string]string) func(text string) error {
	return func(text string) error {
		pairs, err := csv.NewReader(strings.NewReader(text)).Read()
		for _, pair := range pairs {
			name, value, ok := strings.Cut(pair, "=")
			number, bad := strconv.ParseFloat(cmp.Or(words[value], value), 64)
			if !ok || bad != nil {
				return fmt.Errorf("expected %s, found %q", form, pair)
			}
			if *to == nil {
				*to = map[string]float64{}
			}
			(*to)[name] = number
		}
		return err
	}
}

var earlyStopForm = regexp.MustCompile(`^([^:]+):(\d+)(?::(min|max))?(?::([^:]+))?$`)

func parseEarlyStop(text string) (e fit.EarlyStop, err error) {
	if m := earlyStopForm.FindStringSubmatch(text); m != nil {
		e.Metric, e.Mode = m[1], m[3]
		var bad error
		e.Patience, err = strconv.Atoi(m[2])
		e.MinDelta, bad = strconv.ParseFloat(cmp.Or(m[4], "0"), 64)
		if err == nil && bad == nil && e.MinDelta >= 0 && !math.IsInf(e.MinDelta, 1) {
			return e, nil
		}
	}
	return e, errors.New("expected METRIC:PATIENCE[:min|max][:MINDELTA], as in val_loss:3 or val_auc:3:max:0.001")
}

func parseReduceRate(text string) (r fit.ReduceOnPlateau, err error) {
	if m := strings.Split(text, ":"); len(m) == 3 {
		var bad error
		r.Metric = m[0]
		r.Factor, err = strconv.ParseFloat(m[1], 64)
		r.Patience, bad = strconv.Atoi(m[2])
		if err == nil && bad == nil && r.Metric != "" && r.Factor > 0 && r.Factor < 1 && r.Patience >= 0 {
			r.Patience = max(r.Patience, 1)
			return r, nil
		}
	}
	return r, errors.New("expected METRIC:FACTOR:PATIENCE with a factor between 0 and 1, as in val_loss:0.1:10")
}

// parseProfile parses steps=FIRST:LAST or steps=FIRST:LAST,file=PATH. The file is trace.json by default.
func parseProfile(text string) (train.Profile, error) {
	p := train.Profile{File: "trace.json"}
	steps, file, named := strings.Cut(text, ",")
	if named {
		if p.File, named = strings.CutPrefix(file, "file="); !named || p.File == "" {
			return p, fmt.Errorf("found %q after the steps; expected file=PATH", file)
		}
	}
	steps, ok := strings.CutPrefix(steps, "steps=")
	first, last, both := strings.Cut(steps, ":")
	var bad [2]error
	p.First, bad[0] = strconv.ParseInt(first, 10, 64)
	p.Last, bad[1] = strconv.ParseInt(last, 10, 64)
	if !ok || !both || errors.Join(bad[:]...) != nil {
		return p, errors.New("expected steps=FIRST:LAST, as in steps=10:20, and optionally ,file=PATH")
	}
	return p, nil
}

func (s *settings) setStepsPerExecution(text string) error {
	n, err := strconv.Atoi(text)
	if s.ChooseSteps = text == "auto"; !s.ChooseSteps && (err != nil || n < 1) {
		return errors.New("expected a number of at least 1, or auto")
	}
	s.Session.StepsPerExecution = n
	return nil
}

func (s *settings) setGPULimits(text string) error {
	for _, limit := range strings.Split(text, ",") {
		size, err := texts.ParseBytes[memory.Bytes](limit)
		if err != nil {
			return errNoSize
		}
		if size < memory.MiB {
			return errors.New("TensorFlow counts a GPU's memory in MiB; expected at least one")
		}
		s.Session.Device.VirtualGPUs = append(s.Session.Device.VirtualGPUs, []int{int(size / memory.MiB)})
	}
	return nil
}

// newRules returns a flag that adds rules, which commas separate, to *p.
func newRules[T any](p *[]T, parse func(string) (T, error)) *value {
	return newValue("rule", "", func(text string) error {
		for part := range strings.SplitSeq(text, ",") {
			rule, err := parse(part)
			if err != nil {
				return err
			}
			*p = append(*p, rule)
		}
		return nil
	})
}
