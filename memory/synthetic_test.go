package memory

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// course is an artificial series with a known truth.
type course struct {
	name string
	want Kind
	y    []float64
	step float64 // steps between samples
	sd   float64 // standard deviation of the noise
}

const page = 4096

// series returns the course as samples of anonymous memory.
func (c course) series() *Series {
	s := &Series{}
	start := time.Unix(1_700_000_000, 0)
	sample := Sample{}
	for i, v := range c.y {
		sample.Step = int(float64(i) * c.step)
		sample.At = start.Add(time.Duration(i) * time.Second)
		sample.Set(Anon, Known(Bytes(page*math.Round(v/page))))
		s.Append(&sample)
	}
	return s
}

func (c course) tilt(slope float64) course {
	y := make([]float64, len(c.y))
	for i := range y {
		y[i] = c.y[i] + slope*float64(i)*c.step
	}
	c.y = y
	return c
}

// maker makes random courses.
type maker struct{ *rand.Rand }

func newMaker(seed, n int) maker { return maker{rand.New(rand.NewPCG(uint64(seed), uint64(n)))} }

func (m maker) between(low, high float64) float64 { return low + (high-low)*m.Float64() }

// logBetween returns a number whose logarithm is uniformly distributed.
func (m maker) logBetween(low, high float64) float64 {
	return math.Exp(m.between(math.Log(low), math.Log(high)))
}

// noises are kinds of noise that real samples have.
var noises = []string{"gaussian", "correlated", "heavy-tailed", "spikes", "pages", "none"}

func (m maker) noise(kind string, n int, sd float64) []float64 {
	r := make([]float64, n)
	last := 0.0
	rho := m.between(0.3, 0.7)
	for i := range r {
		g := m.NormFloat64()
		switch kind {
		case "gaussian":
			r[i] = sd * g
		case "correlated":
			last = rho*last + math.Sqrt(1-rho*rho)*g
			r[i] = sd * last
		case "heavy-tailed": // Student's t with 2 degrees of freedom, whose variance is infinite
			r[i] = sd * g / math.Sqrt(m.ExpFloat64())
		case "spikes":
			if r[i] = sd * g; m.Float64() < 0.05 {
				r[i] += sd * m.between(10, 50)
			}
		case "pages": // most samples are equal
			r[i] = page * math.Round(0.5*g)
		}
	}
	return r
}

// base returns a constant level with noise.
func (m maker) base(noise string) course {
	n := int(m.logBetween(60, 800))
	c := course{name: noise, want: Flat, step: math.Round(m.logBetween(1, 100)), sd: m.logBetween(page, 2e6)}
	switch noise {
	case "pages":
		c.sd = page
	case "none":
		c.sd = 0
	}
	c.y = m.noise(noise, n, c.sd)
	level := m.logBetween(5e7, 2e9)
	for i := range c.y {
		c.y[i] += level
	}
	return c
}

// unit returns the unit of the heights of steps and curves.
func (c course) unit() float64 { return max(c.sd, page) }

func (m maker) jump(c course) course {
	c.name, c.want = "jump, "+c.name, Jump
	at := int(m.between(0.02, 0.7) * float64(len(c.y)))
	height := m.logBetween(8, 1000) * c.unit()
	for i := max(at, 3); i < len(c.y); i++ {
		c.y[i] += height
	}
	return c
}

func (m maker) ramp(c course) course {
	c.name, c.want = "ramp, "+c.name, Plateau
	tau := max(m.logBetween(0.01, 0.2)*float64(len(c.y)), 2)
	height := m.logBetween(10, 1000) * c.unit()
	for i := range c.y {
		c.y[i] += height * (1 - math.Exp(-float64(i)/tau))
	}
	return c
}

// longRamp returns a curve that still rises at the end. Every verdict except Leak is right.
func (m maker) longRamp(c course) course {
	c.name, c.want = "long ramp, "+c.name, ""
	tau := m.between(0.2, 0.6) * float64(len(c.y))
	height := m.logBetween(100, 1000) * c.unit()
	for i := range c.y {
		c.y[i] += height * (1 - math.Exp(-float64(i)/tau))
	}
	return c
}

func (m maker) saw(c course) course {
	c.name, c.want = "saw, "+c.name, Sawtooth
	period := m.between(8, max(9, float64(len(c.y))/5))
	depth := m.logBetween(15, 1000) * c.unit()
	jitter := 0.0
	phase := m.Float64()
	for i := range c.y {
		if phase += (1 + jitter) / period; phase >= 1 {
			phase -= 1
			jitter = m.between(-0.2, 0.2)
		}
		c.y[i] += depth * phase
	}
	return c
}

// mixture returns a jump while loading, followed by a warm-up curve and noise.
func (m maker) mixture(c course) course {
	c.name, c.want = "mixture, "+c.name, ""
	n := len(c.y)
	at, height := max(2, int(m.between(0.01, 0.1)*float64(n))), m.logBetween(10, 1000)*c.unit()
	tau, rise := max(2, m.between(0.02, 0.15)*float64(n)), m.logBetween(10, 300)*c.unit()
	for i := at; i < n; i++ {
		c.y[i] += height + rise*(1-math.Exp(-float64(i-at)/tau))
	}
	return c
}

// dips returns a level that falls for one or two samples at regular intervals, as after a trim. Half of
// these courses end in a dip.
func (m maker) dips(c course) course {
	c.name, c.want = "dips, "+c.name, Flat
	period, width := 6+m.IntN(15), 1+m.IntN(2)
	depth := m.logBetween(8, 1000) * c.unit()
	phase := m.IntN(period)
	if m.IntN(2) == 0 {
		phase = (width - len(c.y)%period + period) % period
	}
	for i := range c.y {
		if (i+phase)%period < width {
			c.y[i] -= depth
		}
	}
	return c
}

// stairs returns a level with two or three step changes in the first half, as when new threads allocate
// arenas.
func (m maker) stairs(c course) course {
	c.name, c.want = "stairs, "+c.name, Plateau
	return m.climb(c, 0.05, 0.5)
}

// lateStairs returns a level with step changes at any place. Every verdict except Leak is right, since
// one change in each third of a run may be three single changes.
func (m maker) lateStairs(c course) course {
	c.name, c.want = "late stairs, "+c.name, ""
	return m.climb(c, 0.05, 0.95)
}

// climb adds two or three step changes of similar height within a part of the course.
func (m maker) climb(c course, from, to float64) course {
	height := m.logBetween(10, 1000) * c.unit()
	for range 2 + m.IntN(2) {
		at, h := int(m.between(from, to)*float64(len(c.y))), height*m.between(0.7, 1.3)
		for i := at; i < len(c.y); i++ {
			c.y[i] += h
		}
	}
	return c
}

type tally struct {
	sync.Mutex
	kinds map[string]map[Kind]int
}

func (t *tally) add(name string, kind Kind) {
	t.Lock()
	defer t.Unlock()
	if t.kinds == nil {
		t.kinds = map[string]map[Kind]int{}
	}
	if t.kinds[name] == nil {
		t.kinds[name] = map[Kind]int{}
	}
	t.kinds[name][kind]++
}

// parallel calls f for 0 to n-1 on all processors.
func parallel(n int, f func(i int)) {
	var wait sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wait.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wait.Wait()
}

// courses make series without a leak.
var courses = []func(maker, course) course{
	func(_ maker, c course) course { return c },
	maker.jump, maker.ramp, maker.longRamp, maker.saw, maker.mixture, maker.dips, maker.stairs, maker.lateStairs,
}

// make returns the i-th course without a leak. It cycles through all courses and noises.
func (m maker) make(i int) course {
	return courses[(i/len(noises))%len(courses)](m, m.base(noises[i%len(noises)]))
}

// TestErrorRates judges thousands of artificial series without a leak, and again with a leak of 4 times
// the noise floor that Judge reported.
//
//lane:skip check (long)
func TestErrorRates(t *testing.T) {
	n := 2700
	if raceEnabled || testing.Short() {
		n = 108 // the race detector is slow, and only the full number gives rates
	}
	var without, with tally
	parallel(n, func(i int) {
		c := newMaker(7, i).make(i)
		v := c.series().Judge(Criteria{})
		without.add(c.name, v.Kind)
		leaking := c.tilt(4 * v.NoiseFloor).series().Judge(Criteria{})
		with.add(c.name, leaking.Kind)
	})
	for _, name := range slices.Sorted(maps.Keys(without.kinds)) {
		t.Logf("%-24s %-50s with a leak: %v", name, fmt.Sprint(without.kinds[name]), with.kinds[name])
	}
	if n < 1000 {
		return
	}
	shape := func(name string) string {
		if before, _, found := strings.Cut(name, ","); found {
			return before
		}
		return "constant"
	}
	rate := func(from *tally, of string, kinds ...Kind) float64 {
		hits, all := 0, 0
		for name, counts := range from.kinds {
			if of != "" && shape(name) != of {
				continue
			}
			for kind, k := range counts {
				if all += k; slices.Contains(kinds, kind) {
					hits += k
				}
			}
		}
		t.Logf("%-10s %-24v %5.2f%% of %d", of, kinds, 100*float64(hits)/float64(all), all)
		return float64(hits) / float64(all)
	}
	t.Log("without a leak:")
	require.LessOrEqual(t, rate(&without, "", Leak), 0.01)
	for _, s := range []string{"constant", "jump", "ramp", "long ramp", "saw", "mixture", "dips", "stairs",
		"late stairs"} {
		require.LessOrEqual(t, rate(&without, s, Leak), 0.015, s)
	}
	require.GreaterOrEqual(t, rate(&without, "constant", Flat), 0.95)
	require.GreaterOrEqual(t, rate(&without, "jump", Jump), 0.9)
	require.GreaterOrEqual(t, rate(&without, "jump", Jump, Plateau), 0.96)
	require.GreaterOrEqual(t, rate(&without, "ramp", Plateau), 0.9)
	require.GreaterOrEqual(t, rate(&without, "saw", Sawtooth), 0.95)
	require.GreaterOrEqual(t, rate(&without, "mixture", Plateau, Jump), 0.85)
	require.GreaterOrEqual(t, rate(&without, "dips", Flat), 0.85)
	require.LessOrEqual(t, rate(&without, "dips", Inconclusive), 0.03)
	require.GreaterOrEqual(t, rate(&without, "stairs", Plateau, Jump, Flat), 0.97)
	t.Log("with a leak of 4 times the noise floor:")
	firm := 0.0
	for _, s := range []string{"constant", "jump", "saw"} {
		found := rate(&with, s, Leak)
		require.GreaterOrEqual(t, found, 0.985, s)
		firm += found / 3
	}
	require.GreaterOrEqual(t, firm, 0.99)
	require.GreaterOrEqual(t, rate(&with, "stairs", Leak), 0.95)
	require.GreaterOrEqual(t, rate(&with, "late stairs", Leak), 0.95)
	require.GreaterOrEqual(t, rate(&with, "dips", Leak), 0.88) // dips can hide a leak
	require.GreaterOrEqual(t, rate(&with, "ramp", Leak), 0.92)
	require.GreaterOrEqual(t, rate(&with, "ramp", Leak, Inconclusive), 0.98)
	require.GreaterOrEqual(t, rate(&with, "mixture", Leak), 0.8)
	require.GreaterOrEqual(t, rate(&with, "mixture", Leak, Inconclusive), 0.97)
}

// For white noise, the 99% interval of a least-squares slope is known: the deviation is sd *
// sqrt(12/n) / span. The noise floor must not be much wider, or it would hide leaks of 4 times as much.
func TestNoiseFloorIsHonest(t *testing.T) {
	n := 400
	if raceEnabled || testing.Short() {
		n = 20
	}
	ratios, covered := make([]float64, n), make([]bool, n)
	parallel(n, func(i int) {
		m := newMaker(11, i)
		c := course{y: m.noise("gaussian", 200+m.IntN(400), 1e6), step: 10}
		for j := range c.y {
			c.y[j] += 1e9
		}
		v := c.series().Judge(Criteria{})
		ratios[i] = v.NoiseFloor / (2.576 * c.expectedError(1e6))
		covered[i] = v.Slope.Low < 0 && v.Slope.High > 0
	})
	slices.Sort(ratios)
	misses := 0
	for _, c := range covered {
		if !c {
			misses++
		}
	}
	t.Logf("noise floor / theory: median %.2f, from %.2f to %.2f; %d of %d intervals miss the truth",
		ratios[n/2], ratios[0], ratios[n-1], misses, n)
	require.InDelta(t, 1.1, ratios[n/2], 0.25)
	require.LessOrEqual(t, misses, max(n*3/100, 1))
}

// expectedError returns the standard deviation of a least-squares slope in white noise.
func (c course) expectedError(sd float64) float64 {
	n := float64(len(c.y))
	return sd * math.Sqrt(12/n) / (n * c.step)
}
