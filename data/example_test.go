package data_test

import (
	"fmt"
	"os"
	"strings"

	"steadyfit/data"
)

// A pass over a builtin dataset.
func Example() {
	train, test, err := data.Builtin("digits")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(train.Name(), train.Len())
	for _, f := range train.Fields() {
		fmt.Println(f.Name, f.Type, f.Shape)
	}
	fmt.Println(test.Name(), test.Len())
	ahead := data.Prefetch(train.Shuffle(1), 2)
	for epoch := range 2 {
		batches, samples := 0, 0
		for batch, err := range ahead.Batches(data.Pass{Batch: 32, Epoch: epoch}) {
			if err != nil {
				fmt.Println(err)
				return
			}
			batches++
			samples += batch.Size
		}
		fmt.Println(batches, "batches of", samples, "samples")
	}
	// Output:
	// builtin:digits-train 1438
	// x uint8 [64]
	// y int64 []
	// builtin:digits-test 359
	// 45 batches of 1438 samples
	// 45 batches of 1438 samples
}

// An invalid cell is an error with its line and column.
func ExampleOpen_csv() {
	f, err := os.CreateTemp("", "*.csv")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(f.Name())
	fmt.Fprint(f, "length,width,species\n5.1,3.5,setosa\n4.9,n/a,setosa\n")
	f.Close()

	_, err = data.Open(f.Name(), data.Options{CSV: data.CSVOptions{Label: "species"}})
	fmt.Println(strings.ReplaceAll(err.Error(), f.Name(), "iris.csv"))
	// Output:
	// iris.csv: line 3, column "width" (2): found "n/a", expected a number; correct it, encode the column by a rule of a schema (CSVOptions.Schema), or leave it out (Options.Ignore)
}
