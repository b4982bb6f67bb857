"""The parts and stages of gpu_column.py, with small content in place of wheels."""

import json
import pathlib
import sys
import tarfile
import time
import zipfile

import pytest

SCRIPTS = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(SCRIPTS))

import gpu_column


def make_parts(folder, size=1000):
    """Parts of an archive of one wheel and one program."""
    folder.mkdir(parents=True)
    (folder / "a.whl").write_bytes(bytes(range(256)) * 20)
    with zipfile.ZipFile(folder / "programs.zip", "w") as z:
        z.writestr("steadyfit", "#!/bin/sh\n")
    whole = folder / "content.tar"
    with tarfile.open(whole, "w") as t:
        t.add(folder / "a.whl", "wheels/a.whl")
        t.add(folder / "programs.zip", "programs.zip")
    return gpu_column.split(whole, folder, size)


def test_parts_arrive_in_several_calls(tmp_path):
    parts = make_parts(tmp_path / "all")
    assert len(parts) > 3
    kept = tmp_path / "kept"
    for i, part in enumerate(parts):
        call = tmp_path / f"call{i}"
        call.mkdir()
        (call / part["name"]).write_bytes((tmp_path / "all" / part["name"]).read_bytes())
        if i == 0:
            (call / "parts.json").write_text((tmp_path / "all" / "parts.json").read_text())
        assert len(gpu_column.collect(call, kept)) == len(parts) - 1 - i
    gpu_column.unpack(kept, tmp_path / "content")
    assert (tmp_path / "content/wheels/a.whl").read_bytes() == bytes(range(256)) * 20
    assert (tmp_path / "content/programs/steadyfit").stat().st_mode & 0o111


def test_a_damaged_part_is_named_and_asked_for_again(tmp_path, capsys):
    parts = make_parts(tmp_path / "all")
    name = parts[1]["name"]
    good = (tmp_path / "all" / name).read_bytes()
    (tmp_path / "all" / name).write_bytes(good[:-1] + b"?")
    assert gpu_column.collect(tmp_path / "all", tmp_path / "kept") == [name]
    assert f"{name} is damaged" in capsys.readouterr().err
    (tmp_path / "all" / name).write_bytes(good)
    assert gpu_column.collect(tmp_path / "all", tmp_path / "kept") == []


def test_missing_parts_are_listed(tmp_path, capsys):
    parts = make_parts(tmp_path / "all")
    (tmp_path / "all" / parts[2]["name"]).unlink()
    arguments = ["run", "--parts", str(tmp_path / "all"), "--work", str(tmp_path / "work")]
    assert gpu_column.main(arguments) == 3
    assert "missing parts: part-002" in capsys.readouterr().err


def stage(name, code, folder):
    return (name, [sys.executable, "-c", code], folder)


def test_stages_continue_after_a_time_limit(tmp_path):
    count = "open('count', 'a').write('x')"
    plan = [
        stage("first", count, tmp_path),
        stage("wrong", "import sys; print('why'); sys.exit(5)", tmp_path),
        stage("slow", "import os, time; time.sleep(0 if os.path.exists('go') else 60)", tmp_path),
    ]
    assert gpu_column.measure(tmp_path, plan[:2], time.monotonic() + 60) == 1
    assert gpu_column.measure(tmp_path, plan, time.monotonic() + 1) == 4
    (tmp_path / "go").touch()
    assert gpu_column.measure(tmp_path, plan, time.monotonic() + 60) == 1
    assert (tmp_path / "count").read_text() == "x"  # not run again
    done = json.loads((tmp_path / "stages.json").read_text())
    assert {name: s["exit"] for name, s in done.items()} == {"first": 0, "wrong": 5, "slow": 0}
    with tarfile.open(tmp_path / "results/logs.tar.gz") as t:
        assert t.extractfile("logs/wrong.log").read() == b"why\n"
        assert "stages.json" in t.getnames()


def test_wheels_that_cannot_be_installed_end_it(tmp_path):
    plan = [stage("install", "raise SystemExit(1)", tmp_path), stage("later", "pass", tmp_path)]
    with pytest.raises(gpu_column.Failure, match="the wheels were not installed"):
        gpu_column.measure(tmp_path, plan, time.monotonic() + 60)
    assert not (tmp_path / "logs/later.log").exists()


def test_the_matrix_is_that_of_the_makefile():
    makefile = (SCRIPTS.parent / "Makefile").read_text()
    plan = makefile.split("MATRIX_GPU = ")[1].split("\n\n")[0].replace("\\\n", " ")
    assert plan.split() == gpu_column.MATRIX.split()
