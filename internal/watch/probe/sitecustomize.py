# Python imports this module when it starts, since `steadyfit watch` puts its folder in front of PYTHONPATH.
# It starts the probe, and then runs the sitecustomize that the environment has without the folder, if any.
# Interpreters of any version may read this file.
import os
import sys


def _begin():
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != folder]
    if sys.version_info < (3, 9) or "STEADYFIT_WATCH" not in os.environ:
        return
    # Once a process has had a step, the interpreters of other environments that it starts stay as they are.
    try:
        with open(os.path.join(folder, "prefix")) as f:
            if f.read() != sys.prefix:
                return
    except (IOError, OSError):
        pass
    import importlib.util

    def load(name):
        spec = importlib.util.spec_from_file_location("_steadyfit_" + name, os.path.join(folder, name + ".py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    try:
        probe = load("probe")
        if "STEADYFIT_WATCH_TRIAL" in os.environ:
            load("remedies").begin(probe, *os.environ["STEADYFIT_WATCH_TRIAL"].split())
        probe.begin(os.environ["STEADYFIT_WATCH"])
        if "STEADYFIT_WATCH_STACKS" in os.environ:
            load("stacks").Stacks().begin(probe.marks.steps, probe.marks.send, probe.miss)
    except Exception as e:  # the program runs as it does without the probe
        sys.stderr.write("steadyfit watch: the probe does not start: %r\n" % e)


def _run_own():
    import importlib.util

    spec = importlib.util.find_spec("sitecustomize") if sys.modules.pop("sitecustomize", None) else None
    sys.modules["sitecustomize"] = _this
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_this = sys.modules["sitecustomize"]
_begin()
if sys.version_info >= (3, 5):
    _run_own()
