"""Calls a tf.function with another Python number in each step, which is another trace, or always with the same one."""

import common
import numpy as np
from common import tf


def main():
    options = common.parse(__doc__, graph=["grow", "sealed"])

    @tf.function
    def constant(n):
        return tf.identity(tf.constant(np.full(1024, n, "float32")))

    for n in range(1, options.steps + 1):
        constant(n if options.graph == "grow" else 0)
        common.end_step(n, options)


common.finish(main())
