"""Writes resized.json with what TensorFlow makes of a picture of random colours: python3 resized.py

TestResizedLikeTensorFlow and TestResizedImagesKeepFractions read the file. Grey pictures are decoded
as by image_dataset_from_directory(color_mode="grayscale").
"""
import json
import pathlib

import numpy as np
import tensorflow as tf

picture = np.random.default_rng(7).integers(0, 256, (5, 7, 3)).astype("u1")
resized = []
for channels, sizes in (3, [(3, 4), (11, 9), (5, 2), (1, 1)]), (1, [(3, 4), (8, 8), (5, 7)]):
    decoded = tf.io.decode_png(tf.io.encode_png(picture), channels=channels)
    for height, width in sizes:
        values = tf.image.resize(decoded, (height, width), method="bilinear").numpy()
        resized.append({"height": height, "width": width, "channels": channels,
                        "values": values.reshape(-1).tolist()})
text = json.dumps({"picture": picture.reshape(-1).tolist(), "height": 5, "width": 7, "resized": resized},
                  separators=(",", ":"))
(pathlib.Path(__file__).parent / "resized.json").write_text(text)
