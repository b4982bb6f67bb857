"""A pytest plugin: a test marked `flat` fails if its memory grows when its body is repeated.

    @pytest.mark.flat
    def test_predictions_are_flat(model, batch):
        model.predict(batch, verbose=0)

The plugin runs the test in a process of its own under `steadyfit watch`, and repeats the body until the verdict is sure,
or for `within` seconds (120). Fixtures are made in both processes. The command is found on PATH, or by STEADYFIT.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

REPEAT = "PYTEST_STEADYFIT_REPEAT"  # the test to repeat
SHOWN = 4000  # characters of the output of a test that fails


def pytest_configure(config):
    config.addinivalue_line("markers", "flat(within=120): repeat the test, and fail if its memory grows")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    marker = pyfuncitem.get_closest_marker("flat")
    if marker is None:
        return None
    if os.environ.get(REPEAT) == pyfuncitem.nodeid:
        repeat(pyfuncitem)
    else:
        watch(pyfuncitem, **marker.kwargs)
    return True


def repeat(item):
    """Repeats the test until `steadyfit watch` ends the process."""
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    while True:
        item.obj(**arguments)
        sys.modules["_steadyfit_probe"].marks.own("repetition")


def watch(item, within=120):
    command = os.environ.get("STEADYFIT") or shutil.which("steadyfit")
    if command is None:
        pytest.fail("the program steadyfit is not on PATH; set STEADYFIT to its path", pytrace=False)
    test = [sys.executable, "-m", "pytest", "-q", "-p", __name__, item.nodeid]
    if item.config.pluginmanager.hasplugin("xdist"):
        test += ["-n", "0"]
    run = subprocess.run(  # noqa: PLW1510  the report says how it ended
        [command, "watch", "--json", "--within", f"{within}s", "--", *test],
        cwd=item.config.rootpath, env={**os.environ, REPEAT: item.nodeid}, capture_output=True, text=True)
    output, _, report = ("\n" + run.stdout).rpartition("\n{\n")  # the report follows the output of the test
    if not report:
        pytest.fail(f"steadyfit watch ended with exit code {run.returncode}:\n{run.stderr[-SHOWN:]}", pytrace=False)
    report = json.loads("{" + report)
    if not report.get("ended"):
        pytest.fail(f"the test failed when it was repeated:\n{output[-SHOWN:]}", pytrace=False)
    if report["verdict"] != "level":
        pytest.fail(run.stderr[-SHOWN:], pytrace=False)
