"""Trains a model from a tf.data pipeline with a shuffle buffer, which begins anew with each epoch."""

import common
import training


def main():
    options = training.parse(__doc__, data=["tfdata"], shuffle=1000)
    learner = training.Learner("dense-784-10", options)
    x, y = common.Samples(options.seed, (784,), 10).make(options.samples, 0)
    return training.train(learner, options, training.feed(options, x, y, options.shuffle))


common.finish(main())
