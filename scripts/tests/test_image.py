"""scripts/image.sh with engines that only record their arguments."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def image(tmp_path):
    """Runs image.sh with fake engines, which fail for the words in `fails`."""
    tools = tmp_path / "bin"
    tools.mkdir()
    asked = tmp_path / "asked"
    # The PATH has nothing else, since this machine may have a docker.
    for tool in ("bash", "sh", "env", "git", "awk", "dirname", "sed", "cat"):
        found = next(p for d in os.get_exec_path() if (p := pathlib.Path(d, tool)).exists())
        (tools / tool).symlink_to(found)

    def run(*args, engines=("docker", "buildah"), fails="nothing", **variables):
        for engine in engines:
            path = tools / engine
            path.write_text(
                f'#!/bin/sh\nprintf "%s\\n" "{engine} $*" >>"{asked}"\n'
                f'case "{engine} $*" in *"{fails}"*) exit 1 ;; esac\n'
                f'case "$1 $2" in "image inspect") echo 1200000000 ;; "images --format") echo "1.2 GB" ;; "from --pull-never") echo box ;; esac\n'
            )
            path.chmod(0o755)
        asked.write_text("")
        done = subprocess.run(
            [ROOT / "scripts" / "image.sh", *args],
            env={"PATH": str(tools), "HOME": str(tmp_path), **variables},
            check=False,
            capture_output=True,
            text=True,
        )
        return done.returncode, asked.read_text(), done.stderr

    return run


def test_docker_is_taken_if_its_engine_answers(image):
    code, asked, said = image("build", "gpu", BASE="mine:1")
    assert code == 0, said
    build = next(line for line in asked.splitlines() if " build " in line)
    assert build.startswith("docker build --file Dockerfile.gpu --tag localhost/steadyfit:gpu")
    assert "--build-arg VARIANT=gpu --build-arg BASE=mine:1" in build and "GO_BASE" not in build
    assert "localhost/steadyfit:gpu has 1200 MB" in said


def test_buildah_where_no_engine_answers(image):
    code, asked, said = image("build", "cpu", fails="docker info", IMAGE="here")
    assert code == 0, said
    build = next(line for line in asked.splitlines() if " build " in line)
    assert build.startswith("buildah build --format docker --file Dockerfile.gpu --tag here:cpu")


def test_no_engine(image):
    code, _, said = image("build", "cpu", engines=())
    assert code == 1 and "no Docker engine answers" in said
    code, _, said = image("build", "cpu", engines=(), ENGINE="docker")
    assert code == 1 and "docker is missing" in said
    code, _, said = image("build", "cpu", ENGINE="podman")
    assert code == 1 and "expected docker or buildah" in said


def test_a_build_that_fails(image):
    code, _, said = image("build", "cpu", fails="docker build")
    assert code != 0 and "has" not in said


@pytest.mark.parametrize("engine", ["docker", "buildah"])
def test_try_runs_all_checks_and_fails_for_one(image, engine):
    code, asked, said = image("try", "gpu", ENGINE=engine)
    assert code == 0, said
    assert asked.count("steadyfit doctor --gpu") == 1 and asked.count("steadyfit fit") == 1
    code, asked, said = image("try", "gpu", ENGINE=engine, fails="ldd")
    assert code == 1 and said.count("failed:") == 1
    assert asked.count("steadyfit fit") == 1, "the others are tried nevertheless"
    if engine == "buildah":
        assert asked.splitlines()[-1] == "buildah rm box"


def test_usage(image):
    for args in [(), ("other",)]:
        code, _, said = image(*args)
        assert code == 2 and "scripts/image.sh build cpu|gpu" in said
    code, _, said = image("build", "tpu")
    assert code == 1 and "expected cpu or gpu, found 'tpu'" in said
