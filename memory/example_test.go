package memory_test

import (
	"fmt"

	"steadyfit/memory"
)

func ExampleParseBytes() {
	budget, err := memory.ParseBytes("1.5GiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(budget, int64(budget))
	// Output: 1.5 GiB 1610612736
}

func ExampleRead() {
	usage, err := memory.Read()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("resident:", usage.RSS.OK && usage.RSS.Bytes > 0)
	// Output: resident: true
}
