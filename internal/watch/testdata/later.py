"""Keeps memory in a loop of predictions after a level training. With the argument closes, it closes all descriptors."""
import os
import sys

step = sys.modules["_steadyfit_probe"].marks.step
kept = []


def work():
    sum(range(100_000))


for i in range(400):
    work()
    step("train")
if sys.argv[1:] == ["closes"]:
    os.closerange(3, 256)
for i in range(2500):
    kept.append(bytearray(20_000))
    work()
    step("predict")
