//go:build graft || galeone || official

package main

import (
	"fmt"
	"strings"

	"steadyfit/data"
)

// other returns the accuracy of the model on the test digits, which the other binding predicts.
func other(dir string) (string, error) {
	model, err := loadSavedModel(dir, []string{"serve"}, nil)
	if err != nil {
		return "", err
	}
	_, digits, err := data.Builtin("digits")
	if err != nil {
		return "", err
	}
	sig := model.Signatures["predict"]
	right := 0
	for b, err := range digits.Batches(data.Pass{Batch: 1}) {
		if err != nil {
			return "", err
		}
		image := make([][]float32, 1)
		for _, v := range b.Fields[0].Values.([]uint8) {
			image[0] = append(image[0], float32(v))
		}
		x, err := newTensor(image)
		if err != nil {
			return "", err
		}
		results, err := model.Session.Run(map[output]*tensor{named(model, sig.Inputs["x"].Name): x},
			[]output{named(model, sig.Outputs["class"].Name)}, nil)
		if err != nil {
			return "", err
		}
		if results[0].Value().([]int64)[0] == b.Fields[1].Values.([]int64)[0] {
			right++
		}
	}
	return fmt.Sprintf("accuracy %.4f", float64(right)/float64(digits.Len())), model.Session.Close()
}

// named returns the output with a name such as "StatefulPartitionedCall:0".
func named(model *saved, name string) output {
	op, index, _ := strings.Cut(name, ":")
	return model.Graph.Operation(op).Output(int(index[0] - '0'))
}
