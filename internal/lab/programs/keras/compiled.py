"""Trains a model with XLA, on another number of samples in each step, from 1 to twice the batch."""

import common
import numpy as np
import training


def batches(samples, options):
    """Yields batches of all sizes in a random order, again and again."""
    most = 2 * options.batch
    x, y = samples.make(most, 0)
    order = np.random.default_rng([options.seed, 3]).permutation(most) + 1
    while True:
        for n in order:
            size = common.rounded(int(n), most, options.shapes)
            yield x[:size], y[:size]


def main():
    options = training.parse(__doc__, jit=[1, 0], shapes=["varying", "pad", "bucket"])
    learner = training.Learner("dense-100-64-1", options)
    samples = common.Samples(options.seed, (100,), 1)
    return training.train(learner, options, {"x": batches(samples, options), "steps_per_epoch": options.epoch})


common.finish(main())
