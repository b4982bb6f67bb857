"""A program without TensorFlow, whose steps are marked, keeps buffers in a variable of its module until it ends."""
import sys

step = sys.modules["_steadyfit_probe"].marks.own
kept = []
for i in range(4000):
    kept.append(bytearray(20_000))
    sum(range(30_000))
    step("round")
