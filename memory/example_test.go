package memory_test

import (
	"fmt"
	"testing"
	"time"

	"steadyfit/memory"
)

func ExampleRead() {
	usage, err := memory.Read()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("resident:", usage.RSS.OK && usage.RSS.Bytes > 0)
	// Output: resident: true
}

func ExampleSeries_Judge() {
	// A program can add its own samples. Here, each of 300 steps leaves 64 KiB in malloc.
	var series memory.Series
	start := time.Now()
	for step := range 300 {
		sample := memory.Sample{Step: step, At: start.Add(time.Duration(step) * time.Millisecond)}
		held := 200*memory.MiB + memory.Bytes(step)*64*memory.KiB
		sample.Set(memory.Anon, memory.Known(held))
		sample.Set(memory.MallocUsed, memory.Known(held-10*memory.MiB))
		sample.Set("go heap", memory.Known(4*memory.MiB))
		series.Append(&sample)
	}
	verdict := series.Judge(memory.Criteria{Budget: memory.KiB})
	fmt.Println(verdict.Kind, verdict.Cause, verdict.Carrier)
	fmt.Println(verdict)
	// Output:
	// leak native heap malloc in use
	// leak: +64.0 KiB/step [63.8, 64.2] at 218.7 MiB, carried by malloc in use (99% interval, 300 samples over 299 steps of anon)
}

func ExampleNewSampler() {
	live := memory.Source(func(add func(memory.Layer, memory.Reading)) {
		add("live native count", memory.Known(3)) // the program's own counter
	})
	sampler, err := memory.NewSampler(0, live)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sampler.Close()
	var sample memory.Sample // reused, so that sampling does not allocate
	for step := range 3 {
		if err := sampler.Sample(step, &sample); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(sample.Step, sample.Get(memory.RSS).OK, sample.Get("live native count").Bytes, sample.Get("gpu used"))
	// Output: 2 true 3 B unknown
}

func ExampleRequireFlat() {
	trainOneBatch := func() {}
	_ = func(t *testing.T) {
		memory.RequireFlat(t, 64*memory.KiB, func(step int) { trainOneBatch() })
	}
}
