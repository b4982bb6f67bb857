"""The lists of safe and unsafe operations in package savedmodels, against TensorFlow's registry."""

from conftest import SCRIPTS
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

REGISTERED = op_def_pb2.OpList.FromString(
    pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
).op


def lines(name):
    return (SCRIPTS.parent / "savedmodels" / "ops" / name).read_text().splitlines()


def test_every_operation_is_in_one_list():
    names = {op.name for op in REGISTERED}
    safe, unsafe = set(lines("safe.txt")), {line.split(" ")[0] for line in lines("unsafe.txt")}
    assert sorted(names - safe - unsafe) == [], "decide for each whether it is safe, and list it"
    assert sorted((safe | unsafe) - names) == [], "TensorFlow does not have these; remove them"
    assert sorted(safe & unsafe) == [], "these are in both lists"


def test_lists_are_sorted_and_give_reasons():
    for name in ("safe.txt", "unsafe.txt"):
        assert lines(name) == sorted(set(lines(name)))
    assert [line for line in lines("unsafe.txt") if not line.partition(" ")[2]] == []


def test_no_safe_operation_has_an_input_or_attribute_for_a_file():
    safe = set(lines("safe.txt"))
    words = ("file", "path", "folder", "dir", "url", "uri", "address")
    # is_files is a hint about the elements, top_paths a number, and direction that of an RNN.
    harmless = ("is_files", "top_paths", "direction")
    found = {
        (op.name, part.name)
        for op in REGISTERED
        for part in (*op.input_arg, *op.attr)
        if op.name in safe and part.name not in harmless
        if any(word in part.name.lower() for word in words)
    }
    assert found == set()
