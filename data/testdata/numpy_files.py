"""Writes the .npy and .npz files in this folder: python3 numpy_files.py

TestNumPyFiles reads these files of NumPy.
"""
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
TYPES = "f4 f8 i1 i2 i4 i8 u1 u2 u4 u8".split()

arrays = {"b1": np.array([[True, False, True], [False, False, True]])}
for order in "<>":
    for code in TYPES:
        name = ("little_" if order == "<" else "big_") + code
        arrays[name] = np.array([[0, 1, 2], [100, 101, 102]], dtype=order + code)
np.savez(HERE / "types_stored.npz", **arrays)
np.savez_compressed(HERE / "types_deflated.npz", **arrays)

np.save(HERE / "fortran.npy", np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)))
np.save(HERE / "extremes.npy", np.array([[np.iinfo("i8").min, -1], [0, np.iinfo("i8").max]]))
with open(HERE / "version2.npy", "wb") as f:
    np.lib.format.write_array(f, np.array([1.5, -2.5]), version=(2, 0))

np.save(HERE / "scalar.npy", np.float32(1))
np.save(HERE / "half.npy", np.zeros((2, 2), "f2"))
np.save(HERE / "complex.npy", np.zeros(2, "c8"))
np.save(HERE / "text.npy", np.array(["cat", "dog"]))
np.save(HERE / "objects.npy", np.array([[1], "a"], dtype=object), allow_pickle=True)
