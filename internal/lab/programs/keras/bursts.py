"""Threads make 320 tensors of 64 to 256 KiB in each step, and drop them out of order, a tenth one step later."""

import concurrent.futures

import common
import numpy as np
from common import tf


def burst(random, count, others):
    """Makes tensors, halfway drops those of another thread, and returns some of its own."""
    made = []
    for i in range(count):
        if i == count // 2:
            others.clear()
        made.append(tf.fill([int(random.integers(64 << 10, (256 << 10) + 1)) // 4], 1.0))
    random.shuffle(made)
    kept = made[: count // 10]
    for i in range(count // 10, count):
        made[i] = None
    return kept


def main():
    options = common.parse(__doc__, goroutines=8)
    threads = options.goroutines
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    randoms = [np.random.default_rng([options.seed, i]) for i in range(threads)]
    kept = [[] for _ in range(threads)]
    for n in range(1, options.steps + 1):
        kept = kept[1:] + kept[:1]
        kept = list(pool.map(burst, randoms, [320 // threads] * threads, kept))
        common.end_step(n, options)
        print(f"step {n}", flush=True)


common.finish(main())
