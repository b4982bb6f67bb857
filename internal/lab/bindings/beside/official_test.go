//go:build official

package beside

import tf "github.com/tensorflow/tensorflow/tensorflow/go"

const binding = "official"

type (
	output = tf.Output
	tensor = tf.Tensor
	saved  = tf.SavedModel
)

var loadSavedModel, newTensor = tf.LoadSavedModel, tf.NewTensor
