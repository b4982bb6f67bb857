"""Trains a model, and makes a tensor of 64 KiB after each step. All of these tensors are kept, or none."""

import common
import training
from common import tf


def main():
    options = training.parse(__doc__, release=["keep", "close"])
    learner = training.Learner("digits-cnn", options)
    x, y = common.Samples(options.seed, (64,), 10).make(options.samples, 0)
    kept = []

    def make_tensor(logs):
        # In a tf.function, tensors are from the arenas of several threads, with holes between them.
        tensor = tf.fill([64 << 8], 1.0)
        if options.release == "keep":
            kept.append(tensor)

    return training.train(learner, options, training.feed(options, x, y), make_tensor)


common.finish(main())
