"""Makes a keras.Model of another set of 14 outputs in each step, as for looking at layers, and calls it."""

import common
import numpy as np
from common import keras


def main():
    options = common.parse(__doc__, fetches=["varying", "fixed"])
    start, x = keras.Input((16,)), np.zeros((1, 16), "float32")
    outputs = [keras.layers.Rescaling(2.0)(start) for _ in range(14)]
    # The sets, as bits, come in an order without a trend in their sizes.
    sets = np.random.default_rng([options.seed, 6]).permutation(2**14 - 1) + 1
    for n in range(1, options.steps + 1):
        bits = int(sets[0 if options.fetches == "fixed" else n % len(sets)])
        chosen = [output for i, output in enumerate(outputs) if bits & (1 << i)]
        keras.Model(start, chosen)(x, training=False)
        common.end_step(n, options)


common.finish(main())
