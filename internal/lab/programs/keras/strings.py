"""Makes a tensor of 1000 strings in each step, passes it through an operation and reads it."""

import common
import numpy as np
from common import tf


def main():
    options = common.parse(__doc__)
    random = np.random.default_rng([options.seed, 12])
    lengths = random.integers(10, 201, 2000)
    letters = random.integers(ord("a"), ord("z") + 1, 2000)
    texts = [chr(a) * int(n) for a, n in zip(letters, lengths)]
    for n in range(1, options.steps + 1):
        values = texts[n * 7 % 1000 :][:1000]
        back = tf.identity(tf.constant(values)).numpy()
        if [text.decode() for text in back] != values:
            raise RuntimeError("strings came back changed")
        common.end_step(n, options)
        print(f"step {n}", flush=True)


common.finish(main())
