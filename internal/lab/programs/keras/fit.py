"""Trains a model on samples in memory."""

import common
import training
from common import keras


class Hoarder(keras.callbacks.Callback):
    """Keeps all that it gets, and what the model predicts after each step, as some users write it."""

    def __init__(self, watched):
        super().__init__()
        self.watched, self.logs, self.outputs = watched, [], []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))
        self.outputs.append(self.model(self.watched, training=False))


def main():
    own = {"model": common.MODELS, "data": ["numpy", "tfdata", "generator"], "validate": [0, 1]}
    options = training.parse(__doc__, **own, history=["none", "keep", "last"], callback=["none", "hoard"])
    if options.callback == "hoard" and options.loop != "fit":
        raise SystemExit("--callback is for --loop fit")
    learner = training.Learner(options.model, options)
    samples = common.Samples(options.seed, learner.model.input_shape[1:], learner.model.output_shape[-1])
    count, validation, callbacks, history = options.samples, None, [], []
    if options.validate:
        count = max(1, count - options.whole_batch * 3 // 4)  # the last batch is smaller
        validation = samples.make(max(1, count // 5), 1)
    if options.history != "none":
        count = min(count, 200 * options.whole_batch)  # an epoch may be too long for the memory
    if options.callback == "hoard":
        callbacks.append(Hoarder(samples.make(options.batch, 7)[0]))
    x, y = samples.make(count, 0)

    def record(logs):
        if options.history == "last":
            history.clear()
        if options.history != "none":
            history.append({name: float(value) for name, value in logs.items()})

    return training.train(learner, options, training.feed(options, x, y), record, validation, callbacks)


common.finish(main())
