"""Turn a Keras 3 model into a trainable SavedModel.

A trainable SavedModel contains its own train step: a program in Go, Python, Java or C
loads it, feeds a batch and fetches the loss, without Keras or Python. scripts/export.py is
the command and the module of this package.

Every variable that a step touches is tracked by the saved object, optimizer
slots, dropout seeds and accumulators included, because only tracked variables are
initialised on load and covered by the SavedModel's saver.

The modules, from the first to the last: names, graphs (what operations do), adapters (which
weights train), remat (layers that are computed again), inputs, losses, metrics, microbatches,
repeat (several steps), step (the train step of a Keras model), own (a model with its own step),
checks (does the result train), write, load, command.
"""
