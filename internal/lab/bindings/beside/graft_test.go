//go:build graft

package beside

import tf "github.com/wamuir/graft/tensorflow"

const binding = "graft"

type (
	output = tf.Output
	tensor = tf.Tensor
	saved  = tf.SavedModel
)

var loadSavedModel, newTensor = tf.LoadSavedModel, tf.NewTensor
