#!/usr/bin/env python3
"""Write the files of records that the tests of package data read: scripts/records.py

data/testdata/records/ gets TFRecord files of TensorFlow, a tar file in the layout of WebDataset,
Parquet and Arrow files of pandas and pyarrow, and values.json, the values that the Python libraries
read from them. The tests compare package data with these values. The script needs pandas and pyarrow
besides the packages of requirements.txt.
"""

from __future__ import annotations

import io
import json
import pathlib
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from pyarrow import feather

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "data" / "testdata" / "records"
ROWS = 7


def feature(values: Sequence[Any]) -> tf.train.Feature:
    """Return a feature whose list fits values of a type."""
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def write(name: str, rows: Sequence[Mapping[str, Sequence[Any]]]) -> None:
    """Write one record per row."""
    with tf.io.TFRecordWriter(str(FOLDER / name)) as writer:
        for row in rows:
            features = tf.train.Features(feature={k: feature(v) for k, v in row.items()})
            writer.write(tf.train.Example(features=features).SerializeToString(deterministic=True))


def parsed(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that TensorFlow reads, as lists."""
    records = list(tf.data.TFRecordDataset(str(FOLDER / name)).as_numpy_iterator())
    values = tf.io.parse_example(tf.constant(records), spec)
    return {
        k: [[t.decode() for t in r] for r in v.numpy()]
        if v.dtype == tf.string
        else v.numpy().tolist()
        for k, v in values.items()
    }


def table() -> list[dict[str, Sequence[Any]]]:
    """Return rows with numbers and text."""
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.normal(size=3).astype("float32").tolist(),
            "ids": [int(v) for v in rng.integers(-(2**62), 2**62, 2)],
            "words": [f"w{i}".encode(), "grün".encode()],
            "label": [i % 3],
        }
        for i in range(ROWS)
    ]


def picture(i: int) -> np.ndarray:
    """Return a smooth image of 8 by 6 pixels."""
    y, x = np.mgrid[0:6, 0:8]
    return np.stack([30 * x, 40 * y, np.full_like(x, 20 * i)], -1).astype("uint8")


def flowers() -> dict[str, Any]:
    """Write images as a set of two files and as a tar file, and return their values."""
    names = ["rose", "lily", "tulip"]
    pixels = []
    sides = []
    with tarfile.open(FOLDER / "flowers.tar", "w") as tar:

        def add(name: str, content: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for part, rows in enumerate((range(4), range(4, ROWS))):
            encoded = []
            for i in rows:
                if i % 2:
                    raw = tf.io.encode_png(picture(i)).numpy()
                    decoded = tf.io.decode_png(raw)
                else:
                    jpeg = tf.io.encode_jpeg(picture(i), quality=98, chroma_downsampling=False)
                    raw = jpeg.numpy()
                    decoded = tf.io.decode_jpeg(raw, dct_method="INTEGER_ACCURATE")
                pixels.append(decoded.numpy().ravel().tolist())
                row: dict[str, Sequence[Any]] = {
                    "image/encoded": [raw],
                    "image/class/text": [names[i % 3].encode()],
                    "image/class/label": [i % 3],
                    "image/objects": [1.0] * (i + 1),
                }
                encoded.append(row)
                side = np.arange(6, dtype=">f4").reshape(3, 2) + i
                sides.append(side.ravel().tolist())
                array = io.BytesIO()
                np.save(array, side)
                # The images have one extension. The name of the last sample needs a PAX header.
                key = f"train/{i:06}" + "x" * 120 * (i == ROWS - 1)
                add(key + ".jpg", raw)
                add(key + ".side.npy", array.getvalue())
                add(key + ".cls", str(i % 3).encode())
                add(key + ".json", json.dumps({"name": names[i % 3], "score": i / 2}).encode())
            write(f"flowers-{part:05}-of-00002.tfrecord", encoded)
    return {
        "x": pixels,
        "y": [i % 3 for i in range(ROWS)],
        "names": [names[i % 3] for i in range(ROWS)],
        "side": sides,
    }


def parquet() -> dict[str, Any]:
    """Write tables, and return their values."""
    rng = np.random.default_rng(2)
    columns: dict[str, Any] = {
        "double": rng.normal(size=ROWS),
        "float": rng.normal(size=ROWS).astype("float32"),
        "flag": np.arange(ROWS) % 2 == 0,
        "text": [f"grün {i % 3}" for i in range(ROWS)],
        "label": ["b", "a", "b", "a", "a", "b", "a"],
    }
    for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]:
        low, high = np.iinfo(name).min, np.iinfo(name).max
        columns[name] = np.array([low, high, 0, 1, 2, 3, 4], dtype=name)
    frame = pd.DataFrame(columns)
    frame["list"] = [rng.normal(size=3).astype("float32") for _ in range(ROWS)]
    schema = pa.Schema.from_pandas(frame)
    at = schema.get_field_index("list")
    schema = schema.set(at, pa.field("list", pa.list_(pa.float32(), 3)))
    for name, codec in (("table", "snappy"), ("zstd", "zstd")):
        frame.to_parquet(
            FOLDER / f"{name}.parquet", schema=schema, compression=codec, row_group_size=3
        )
    arrow(frame, schema)
    odd = pa.table(
        {
            "x": pa.array([1.0, 2.0]),
            "null": pa.array([1, None]),
            "lengths": pa.array([[1], [1, 2]]),
            "nested": pa.array([[[1]], [[2]]]),
            "date": pa.array([1, 2], pa.date32()),
            "struct": pa.array([{"bytes": b"a", "size": 1}, {"bytes": b"b", "size": 2}]),
        }
    )
    pq.write_table(odd, FOLDER / "odd.parquet")
    encodings()
    read = pq.read_table(FOLDER / "table.parquet").to_pydict()
    return {k: v for k, v in read.items() if not k.startswith("__")}


def arrow(frame: pd.DataFrame, schema: pa.Schema) -> None:
    """Write the rows of the Parquet table to files and a stream of Arrow, and a table of other types."""
    categories = frame.assign(label=frame["label"].astype("category"))
    categories.to_feather(FOLDER / "table.feather", chunksize=3)
    table = pa.Table.from_pandas(frame, schema)
    with pa.ipc.new_stream(FOLDER / "stream.arrow", schema) as writer:
        writer.write_table(table, max_chunksize=3)
    times = pa.array([1_709_209_800_000, None], pa.timestamp("ms"))
    words = pa.array(["b", None]).dictionary_encode()
    odd = pa.table(
        {
            "x": pa.array([1.0, 2.0]),
            "null": pa.array([1, None]),
            "nothing": pa.nulls(2),
            "lengths": pa.array([[1], [1, 2]]),
            "holes": pa.array([[1, None], [1, 2]]),
            "nested": pa.array([[[1]], [[2]]]),
            "date": pa.array([1, 2], pa.date32()),
            "time": times,
            "words": words,
            "numbers": pa.DictionaryArray.from_arrays([1, 0], pa.array([5.0, 7.0])),
            "decimal": pa.array([1, 2], pa.decimal128(5)),
            "half": pa.array(np.array([1, 2], "float16")),
            "large": pa.array(["a", "b"], pa.large_string()),
            "view": pa.array(["short", "a text of more than 12 bytes"], pa.string_view()),
            "flags": pa.array([[True, False], [False, True]], pa.list_(pa.bool_(), 2)),
            "image": pa.array([{"bytes": b"a", "path": None}, None]),
            "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    with pa.ipc.new_file(FOLDER / "odd.arrow", odd.schema) as writer:
        writer.write_table(odd)


def encodings() -> None:
    """Write a table whose columns have the encodings of pages of version 2, and as Arrow files."""
    rows = range(300)
    flags = [i % 29 < 11 for i in rows]
    columns = {
        "whole": (pa.array([i * i - (i % 7 << 40) for i in rows]), "DELTA_BINARY_PACKED"),
        "small": (pa.array([i // 3 for i in rows], pa.int32()), "DELTA_BINARY_PACKED"),
        "flag": (pa.array(flags), "RLE"),
        "maybe": (pa.array(flags), "RLE"),
        "flags": (pa.array([[i % 5 == 0, f] for i, f in enumerate(flags)]), "RLE"),
        "half": (pa.array([i / 2 for i in rows]), "BYTE_STREAM_SPLIT"),
        "path": (pa.array([f"images/{i:04}.png" for i in rows]), "DELTA_BYTE_ARRAY"),
        "name": (pa.array([f"name {i % 13}" for i in rows]), "DELTA_LENGTH_BYTE_ARRAY"),
    }
    fields = [pa.field(k, v.type, nullable=k != "flag") for k, (v, _) in columns.items()]
    table = pa.table([v for v, _ in columns.values()], schema=pa.schema(fields))
    for codec in ("lz4", "zstd"):
        feather.write_feather(table, FOLDER / f"{codec}.feather", compression=codec, chunksize=200)
    pq.write_table(
        table,
        FOLDER / "encodings.parquet",
        row_group_size=200,
        data_page_version="2.0",
        data_page_size=1000,
        write_batch_size=50,
        use_dictionary=False,
        column_encoding={
            "flags.list.element" if k == "flags" else k: e for k, (_, e) in columns.items()
        },
    )


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    spec = {
        "x": tf.io.FixedLenFeature([3], tf.float32),
        "ids": tf.io.FixedLenFeature([2], tf.int64),
        "words": tf.io.FixedLenFeature([2], tf.string),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }
    write("table.tfrecord", table())
    values = {"table": parsed("table.tfrecord", spec)}
    write("lengths.tfrecord", [{"x": [1.0] * (1 + i // 2), "label": [i]} for i in range(4)])

    values["flowers"] = flowers()
    values["parquet"] = parquet()
    (FOLDER / "values.json").write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
