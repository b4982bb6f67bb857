"""Predicts for a number of samples that is drawn anew for each step, from 1 to twice the batch."""

import common
import numpy as np


def main():
    options = common.parse(__doc__, shapes=["varying", "pad", "bucket"])
    model, _ = common.make_model("digits")
    model.compile()
    most = 2 * options.batch
    x, _ = common.Samples(options.seed, (64,), 10).make(most, 0)
    random = np.random.default_rng([options.seed, 3])
    for n in range(1, options.steps + 1):
        size = common.rounded(int(random.integers(1, most + 1)), most, options.shapes)
        model.predict(x[:size], batch_size=size, verbose=0)
        common.end_step(n, options)


common.finish(main())
