//go:build galeone

package beside

import (
	tf "github.com/galeone/tensorflow/tensorflow/go"
	_ "github.com/galeone/tfgo"
)

const binding = "galeone"

type (
	output = tf.Output
	tensor = tf.Tensor
	saved  = tf.SavedModel
)

var loadSavedModel, newTensor = tf.LoadSavedModel, tf.NewTensor
