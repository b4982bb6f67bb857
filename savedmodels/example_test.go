package savedmodels_test

import (
	"errors"
	"fmt"

	"steadyfit/savedmodels"
)

func ExampleOpen() {
	m, err := savedmodels.Open("testdata/good")
	if err != nil {
		fmt.Println(err)
		return
	}
	train, err := m.Signature(m.Roles.Train)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, in := range train.DataInputs() {
		fmt.Println("feed", in.Name, in.DType, in.Shape, "as", in.Op)
	}
	for _, out := range train.Metrics() {
		fmt.Println("fetch", out.Name, "from", out.Op)
	}
	// Output:
	// feed x float32 [-1 3] as train_x:0
	// feed y float32 [-1 1] as train_y:0
	// fetch loss from StatefulPartitionedCall_3:0
	// fetch mae from StatefulPartitionedCall_3:1
}

func ExampleModel_CheckTrainable() {
	m, err := savedmodels.Open("testdata/unsafe")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = m.CheckTrainable(false)
	fmt.Println(errors.Is(err, savedmodels.ErrUnsafeOps))
	var refused *savedmodels.NotTrainableError
	if errors.As(err, &refused) {
		for _, p := range refused.Problems {
			fmt.Println(p.Severity, p.Code, p.Subject)
		}
	}
	fmt.Println(m.CheckTrainable(true))
	// Output:
	// true
	// error unsafe-op DatasetFromGraph
	// error unsafe-op EagerPyFunc
	// error unsafe-op ReadFile
	// error unsafe-op SaveV2
	// error unsafe-op WriteFile
	// <nil>
}
