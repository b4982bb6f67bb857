"""The probe of `steadyfit watch` in a Python process.

It marks the steps of a program, and counts what makes the memory of programs with TensorFlow, Keras and PyTorch grow:
traces, functions, models, operations of a graph, and containers that become longer. It imports none of these packages.
An import hook wraps some of their functions when the program imports them. What the program computes stays the same:
the wrappers count, and an error in the probe is reported and never raised.

At a mark, the probe writes a line of JSON to a Unix socket and waits for one byte, while the other side reads the memory
of the process. Marks are at least 50 ms apart. After the first ones, they come less often if they take more than 1% of
the time, but at least five times a second. The byte asks for containers that grow if the memory has grown: finding them takes
about 0.1 s in a program with TensorFlow. A program without steps is asked by the signal SIGURG, which does nothing in a
process that has no handler. Python handles it in the main thread between two operations.
"""

import atexit
import collections
import functools
import gc
import importlib.abc
import importlib.machinery
import itertools
import json
import linecache
import os
import re
import signal
import socket
import sys
import sysconfig
import threading
import time
import types

MARK_SECONDS = 0.05  # between two marks
RARELY = 0.2  # seconds between two marks, at most
MARKS = 64  # that may come as often, whatever they take, so that short programs have enough
SHARE = 0.01  # of the program's time that later marks, and the processor's time of snapshots, may take
SNAPSHOTS = 5  # that may take any time, too
LEAST = 64 << 10  # bytes that a container has added, before its name is searched for
MANY = 200_000  # containers, from which on only longer ones are compared
SHORT, LONG = 8, 64  # the number of elements of the shortest container that is compared
NODE = 1200  # bytes of a node of a graph of PyTorch, estimated; tensors that it holds come on top
GRAPH = 0  # the key of the graphs of PyTorch among the IDs of containers
SEARCH = b"s"  # the answer to a mark that asks for a snapshot
REPLY_SECONDS = 10
GIL = getattr(sys, "_is_gil_enabled", lambda: True)()  # without it, other threads run during a snapshot

counts = collections.Counter()
places = {}  # by (what is counted, name, file, line): [count, detail]
missed = []
local = threading.local()
main = [""]  # the file of the program


def miss(text):
    if text not in missed and len(missed) < 20:
        missed.append(text)


def foreign(error):
    """Reports whether an error comes from the program, such as from its handler of a signal."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return own(trace.tb_frame.f_code.co_filename)


def guarded(f):
    """Makes a function of the probe report its errors instead of raising them."""

    @functools.wraps(f)
    def call(*args, **kwargs):
        try:
            return f(*args, **kwargs)
        except Exception as e:
            if foreign(e):
                raise
            miss(f"{f.__name__}: {type(e).__name__}")

    return call


# The connection


class Link:
    """The connection to `steadyfit watch`. It belongs to one process: a child after fork makes its own."""

    def __init__(self, path):
        self.path, self.socket, self.pid, self.identity = path, None, 0, None

    def open(self):
        if self.pid != os.getpid():
            self.pid, self.socket = os.getpid(), None
            s = socket.socket(socket.AF_UNIX)
            try:
                if s.fileno() <= 2:  # the program has closed a standard stream, and its output must not come here
                    raise OSError("the descriptor belongs to a standard stream")
                s.settimeout(REPLY_SECONDS)
                s.connect(self.path)
            except OSError:
                s.close()
                return False
            self.socket, self.identity = s, self.descriptor(s)
            return self.send({"hello": {"asked": signal.getsignal(signal.SIGURG) is asked}})
        return self.socket is not None

    @staticmethod
    def descriptor(s):
        stat = os.fstat(s.fileno())
        return stat.st_dev, stat.st_ino

    def send(self, message, wait=False):
        """Sends a message. It returns the answer if it waits for one, and nothing when the connection is gone for good."""
        try:
            # A program that closes all descriptors may have opened a file of its own with this number.
            if self.descriptor(self.socket) != self.identity:
                raise OSError("the descriptor belongs to the program")
            # A program may let SIGPIPE end it.
            self.socket.sendall(json.dumps(message).encode() + b"\n", socket.MSG_NOSIGNAL)
            answer = not wait or self.socket.recv(1)
            if answer:
                return answer
        except OSError as e:
            self.close()
            if foreign(e):
                raise
            return None
        except BaseException:  # the answer is still to come
            self.close()
            raise
        self.close()
        return None

    def close(self):
        if self.socket is None:
            return
        try:
            if self.descriptor(self.socket) == self.identity:
                self.socket.close()
            else:
                self.socket.detach()
        except OSError:
            self.socket.detach()
        self.socket = None


# Places in the program


LIBRARIES = tuple(
    p + os.sep for p in {sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")} if p
)


def own(filename):
    """Reports whether a file is part of the program, and not of a library."""
    return not (filename.startswith(("<", *LIBRARIES)) or "/site-packages/" in filename or "/dist-packages/" in filename or filename == __file__)


def user_frame():
    """Returns the innermost frame of the program's own files; None if there is none."""
    f = sys._getframe(1)
    while f is not None and not own(f.f_code.co_filename):
        f = f.f_back
    return f


@guarded
def happened(what, name="", detail=""):
    """Counts an event with its place."""
    counts[what] += 1
    if counts[what] > 2000 and counts[what] % 16:
        return
    f = user_frame()
    key = (what, name, f.f_code.co_filename, f.f_lineno) if f else (what, name, "", 0)
    if key in places or len(places) < 1000:
        place = places.setdefault(key, [0, ""])
        place[0] += 1 if counts[what] <= 2000 else 16
        place[1] = detail or place[1]


# Steps


class Marks:
    measured = False  # whether the moment before the first step has a mark

    def __init__(self, path):
        self.link, self.lock = Link(path), threading.Lock()
        self.steps, self.epochs = collections.Counter(), 0
        self.next, self.made, self.snapshots = 0.0, 0, Snapshots()
        self.only = None  # the kind of step that has marks; None means each

    def own(self, kind):
        """Ends a step of a kind that the program defines. Other steps are counted, and have no marks."""
        self.only = kind
        self.step(kind)

    @guarded
    def step(self, kind, n=1):
        if not self.steps:  # what came before is the start of the program
            self.snapshots = Snapshots()
            self.keep_prefix()
        self.steps[kind] += n
        if self.only in (None, kind) and time.monotonic() >= self.next and self.lock.acquire(blocking=False):
            try:
                self.mark(kind)
            finally:
                self.lock.release()

    def before(self):
        """Comes before a step. The first one has a mark if the program is measured."""
        if self.measured:
            self.measured = False
            self.alone(lambda: self.tell("loaded"))

    def keep_prefix(self):
        """Keeps the interpreter's environment in a file, since the process may have threads that read its variables."""
        try:
            with open(os.path.join(os.path.dirname(self.link.path), "prefix"), "x") as f:
                f.write(sys.prefix)
        except OSError:
            pass  # another process has steps, too

    def mark(self, kind):
        begin = time.monotonic()
        self.next = begin + MARK_SECONDS
        if self.link.open():
            answer = self.tell(kind)
            end = time.monotonic()
            self.made += 1
            if self.made > MARKS:
                self.next = max(self.next, end + min((end - begin) / SHARE, RARELY))
            if answer == SEARCH:
                self.report(self.snapshots.due(end))

    def asked(self):
        """Answers a request for containers, which comes between any two operations of the main thread."""

        def answer():
            self.link.send({"counts": self.amounts()})
            self.report(self.snapshots.due(time.monotonic()))

        if not self.steps:
            self.alone(answer)

    @guarded
    def alone(self, do):
        """Calls do, unless the connection is gone or in use. A handler of a signal may interrupt a use by its own thread."""
        if self.lock.acquire(blocking=False):
            try:
                if self.link.open():
                    do()
            finally:
                self.lock.release()

    def tell(self, kind):
        return self.link.send({"mark": kind, "steps": self.steps, "epochs": self.epochs, "counts": self.amounts()}, wait=True)

    def amounts(self):
        blocks = {"python block count": sys.getallocatedblocks()}
        if not gc.isenabled():
            blocks["uncollected object count"] = gc.get_count()[0]
        return {**{f"{what} count": n for what, n in counts.items()}, **blocks, **malloc()}

    def report(self, search, once=False):
        """Sends what takes longer to find: containers that grow, and places."""
        grown = None  # it was not looked for
        if search and GIL:
            main[0] = file_of(sys.modules["__main__"])
            grown = self.snapshots.take(once)
        elif search:
            miss("containers were not looked for, since this Python has no global interpreter lock")
        self.link.send({"containers": grown, "places": [
            {"what": w, "name": n, "file": f, "line": at, "count": c, "detail": d}
            for (w, n, f, at), (c, d) in sorted(places.items(), key=lambda p: -p[1][0])[:50]
        ], "missed": missed})

    def send(self, message):
        with self.lock:
            if self.link.open():
                self.link.send(message)

    def imported(self):
        """Tells that a package was imported, which takes memory, too."""
        if not self.steps:
            self.alone(lambda: self.link.send({"imported": {}}))

    @guarded
    def forked(self):
        """Begins anew in a child process."""
        self.link.close()
        self.link.pid = 0
        self.lock, self.snapshots = threading.Lock(), Snapshots()
        for of_parent in (self.steps, counts, places):
            of_parent.clear()
        self.link.open()

    @guarded
    def end(self):
        with self.lock:
            if self.link.open():
                self.report(self.tell("") == SEARCH, once=True)


marks = None


def asked(number, frame):
    marks.asked()


def leave_signal():
    """Ends requests by a signal once the program handles this signal itself."""
    call = signal.signal

    @functools.wraps(call)
    def set_handler(signalnum, handler):
        if signalnum == signal.SIGURG:
            marks.alone(lambda: marks.link.send({"hello": {"asked": False}}, wait=True))
        return call(signalnum, handler)

    signal.signal = set_handler


def begin(path):
    global marks
    marks = Marks(path)
    sys.meta_path.insert(0, Finder())
    if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, asked)
        leave_signal()
    atexit.register(marks.end)
    os.register_at_fork(after_in_child=marks.forked)
    marks.link.open()


class Mallinfo:
    """Reads mallinfo2 of glibc 2.33 or newer. ctypes is used only once the program has imported it."""

    call = None

    def __call__(self):
        if self.call is None and "ctypes" in sys.modules:
            import ctypes

            names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
            info = type("mallinfo2", (ctypes.Structure,), {"_fields_": [(n, ctypes.c_size_t) for n in names]})
            self.call = getattr(ctypes.CDLL(None), "mallinfo2", False)
            if self.call:
                self.call.restype = info
        m = self.call() if self.call else None
        if m is None or m.uordblks == 0:  # another malloc is loaded
            return {}
        return {"malloc in use": m.uordblks + m.hblkhd, "malloc free": m.fordblks}


malloc = Mallinfo()


# Containers


# key is like id for types, and an audit hook of the program does not see it.
key = object.__hash__
CACHE = type(functools.lru_cache(len))  # a function whose results are kept


def select(get, of, test):
    """Returns the objects of get(of) for which test(key(type)) is true.

    The objects may include a tuple that another thread has not completed. CPython cannot complete a tuple to which there is
    a second reference (python/cpython#59313). So no other thread may run before such a tuple is left out: all of the
    search is one call in C, in which no collection starts, and no iterator outlives it that has the list of all objects.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        chain, partial = itertools.chain.from_iterable, functools.partial
        twice = chain(map(itertools.repeat, map(get, (of,)), (2,)))  # the same list, for compress and for its selectors
        selectors = map(partial(map, test), map(partial(map, key), map(partial(map, type), twice)))
        found = list(chain(map(itertools.compress, twice, selectors)))
        found[:] = [o for o in found if o is not found]
        return found
    finally:
        if enabled:
            gc.enable()


def referrers(o):
    """Returns the objects that refer to another, but for tuples."""
    return select(gc.get_referrers, o, key(tuple).__ne__)


def containers():
    """Returns all containers of Python's own types, whose methods run no code of the program, and tensors of PyTorch.

    The collector leaves out some dicts, such as those of arrays. They are found if a module or an object of the program
    has them.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    kinds = {key(t) for t in (list, dict, set, collections.deque, collections.defaultdict, collections.OrderedDict)}
    modules = {id(m): m for m in list(sys.modules.values()) if type(m) is type(sys) and own(file_of(m) or "<")}
    values = [v for m in modules.values() for v in list(vars(m).values())]
    classes = {key(c) for c in values if isinstance(c, type) and own(file_of(sys.modules.get(c.__module__)) or "<")}
    found = select(gc.get_objects, None, {key(tensor), key(CACHE), *kinds, *classes}.__contains__)
    for o in found:
        if key(type(o)) in classes:
            for v in gc.get_referents(o):  # __dict__ would make a dict that the object may not have
                values.append(v)
                values += v.values() if type(v) is dict else ()
        elif type(o) is CACHE:
            values += gc.get_referents(o)
    return (
        [o for o in found if key(type(o)) in kinds] + [v for v in values if type(v) is dict and not gc.is_tracked(v)],
        [o for o in found if type(o) is tensor and o.grad_fn is not None],
    )


def graph(tensors, most=50_000):
    """Returns the number of nodes in the graphs of tensors of PyTorch, and the tensor that adds most of them.

    It returns no number if there are too many.
    """
    seen, largest, most_added = set(), None, 0
    for t in tensors:
        before, todo = len(seen), [t.grad_fn]
        while todo and len(seen) < most:
            f = todo.pop()
            if f is not None and f not in seen:
                seen.add(f)
                todo.extend(g for g, _ in f.next_functions)
        if len(seen) - before > most_added:
            largest, most_added = t, len(seen) - before
    return len(seen) if len(seen) < most else None, largest


class Snapshots:
    """Finds containers that become longer, and the variables that hold them."""

    def __init__(self):
        self.taken, self.took, self.began, self.next = 0, 0.0, time.monotonic(), 0.0
        self.at = 0.0  # the time of the last snapshot
        self.lengths = {}  # of all containers at that time
        self.growing = {}  # by id: [length at first, time of it, snapshots in which it grew, name]

    def due(self, now):
        return now >= self.next and (self.taken < SNAPSHOTS or self.took < SHARE * (now - self.began))

    def take(self, once):
        began = time.thread_time()
        found = self.find(1 if once else 2)
        self.taken, self.took = self.taken + 1, self.took + time.thread_time() - began
        self.next = time.monotonic() + 0.15 * 2 ** min(self.taken, 5)
        return found

    @guarded
    def find(self, least):
        """Returns the containers that have grown in least snapshots."""
        now = time.monotonic()
        lengths, grown, (objects, tensors) = {}, [], containers()
        mine = {id(lengths), id(grown), id(self.lengths), id(self.growing), id(places), id(missed)}
        shortest = SHORT if len(objects) < MANY else LONG
        for o in objects:
            n = len(o)
            if n >= shortest and id(o) not in mine:
                i = id(o)
                lengths[i] = n
                if n > self.lengths.get(i, n) and getattr(o, "maxlen", None) is None:
                    grown.append(o)
        nodes, largest = graph(tensors)
        if nodes:
            lengths[GRAPH] = nodes
        del objects, tensors
        before = {i: g for i, g in self.growing.items() if lengths.get(i, -1) >= self.lengths.get(i, 0)}
        self.growing = before
        out = []
        for o in grown:
            try:
                each, holds = self.size_of_some(o)
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, StopIteration, ValueError) as e:
                if foreign(e):
                    raise
                continue  # another thread has changed it, or a variable of a function has no value yet
            g = before.setdefault(id(o), [self.lengths[id(o)], self.at, 0, None])
            g[2] += 1
            out.append((each * (len(o) - g[0]), o, g, each, holds, type(o).__name__, len(o)))
        if nodes and nodes > self.lengths.get(GRAPH, nodes):
            g = before.setdefault(GRAPH, [self.lengths[GRAPH], self.at, 0, None])
            g[2] += 1
            out.append((NODE * (nodes - g[0]), largest, g, NODE, "node of its graph", "graph", nodes))
        self.lengths, self.at = lengths, now
        out = sorted((c for c in out if c[2][2] >= least and c[0] >= LEAST), key=lambda c: -c[0])[:3]
        del grown
        for c in out:
            if c[2][3] is None:
                c[2][3] = Name().of(c[1])
        return [self.described(*c) for c in out]

    def described(self, amount, o, g, each, holds, kind, length):
        first, at, _, (name, file, line) = g
        return {
            "name": name, "file": file, "line": line, "own": own(file or "<"), "holds": holds, "bytes": each,
            "type": "dict" if kind in ("OrderedDict", "defaultdict") else kind,
            "id": GRAPH if kind == "graph" else id(o), "length": length, "first": first,
            "seconds": self.at - at,
        }

    def size_of_some(self, o):
        """Returns the mean size of the elements that were added last, and their type."""
        if isinstance(o, dict):
            added = [next(reversed(o.values()))]
        elif isinstance(o, (list, collections.deque)):
            added = [o[-1 - i] for i in range(min(len(o), 4))]
        else:
            added = [next(iter(o))]
        return sum(map(size, added)) / len(added) + 16, describe(added[0])


def describe(x):
    module = type(x).__module__
    if (module, type(x).__name__) == ("torch", "Tensor") and x.grad_fn is not None:
        return "torch.Tensor with its graph"
    return type(x).__name__ if module == "builtins" else f"{module.split('.')[0]}.{type(x).__name__}"


def size(x, depth=3):
    """Estimates the memory of a value. It calls methods of well-known types only."""
    t = type(x)
    kind = t.__module__.split(".")[0], t.__name__
    if kind == ("numpy", "ndarray"):
        return 112 + (x.nbytes if type(x.base) is not t else x.base.nbytes)  # a view keeps all of its base
    if kind[0] == "tensorflow" and kind[1] == "EagerTensor":
        return 600 + x._num_elements() * x.dtype.size
    if kind == ("torch", "Tensor"):
        nodes = graph([x], 100)[0] or 100 if x.grad_fn is not None else 0
        return 400 + x.numel() * x.element_size() + nodes * NODE
    if t in (list, tuple, set, frozenset, dict, collections.deque):
        if depth == 0 or not x:
            return sys.getsizeof(x)
        some = [v for v, _ in zip(x.values() if t is dict else x, range(8))]
        if len(some) > 1 and all(v is some[0] for v in some):  # all elements are one object
            return sys.getsizeof(x) + size(some[0], depth - 1)
        return sys.getsizeof(x) + sum(size(v, depth - 1) for v in some) / len(some) * len(x)
    if t is types.MethodType and depth:
        return sys.getsizeof(x) + size(x.__self__, depth - 1)
    if t is types.FunctionType and depth:
        return sys.getsizeof(x) + sum(size(c.cell_contents, depth - 1) for c in x.__closure__ or ())
    if t is functools.partial and depth:
        return sys.getsizeof(x) + sum(size(v, depth - 1) for v in (*x.args, *x.keywords.values()))
    if t.__module__ == "builtins":
        return sys.getsizeof(x, 64)
    inner = vars_of(x) if depth else None
    return t.__basicsize__ + (size(inner, depth - 1) if type(inner) is dict else 0)


# Code that adds to the container before it.
ADDED = r"\s*\+=|\.(append|appendleft|extend|add|insert|update|setdefault|put|put_nowait)\b|\[[^\]]*\]\s*=[^=]"


class Name:
    """Finds the variable that holds a container."""

    def __init__(self):
        self.mine, self.searches = set(), 10  # each goes through all objects

    def of(self, o, depth=3):
        for f in frames():
            name = variable(f, o)
            if name is not None:
                return self.with_line(name, f.f_code.co_filename)
        holders = self.holders(o)
        self.mine.add(id(holders))
        if not holders and self.searches >= 0 and (3, 11) <= sys.version_info < (3, 13):
            return hidden()  # the frames of these versions do not tell what their variables hold
        for h in holders:
            if isinstance(h, dict):
                found = self.in_dict(h, o)
                if found:
                    return found
            elif type(h) is CACHE:
                return self.cached(h)
            elif not isinstance(h, (list, set)) and vars_of(h) is not None:
                for name, value in list(vars_of(h).items()):
                    if value is o:
                        return self.attribute(h, name)
        if depth:
            for h in holders:
                if isinstance(h, (list, dict, tuple, collections.deque)):
                    name, file, line = self.of(h, depth - 1)
                    if name:
                        return name + "[...]", file, line
        return "", "", 0

    def holders(self, o):
        self.searches -= 1
        return [h for h in referrers(o) if id(h) not in self.mine] if self.searches >= 0 else []

    def in_dict(self, d, o):
        name = next((k for k, v in list(d.items()) if v is o and isinstance(k, str)), None)
        if name is None:
            return None
        if "__name__" in d and "__spec__" in d and sys.modules.get(d["__name__"]) is not None:
            return self.with_line(name, file_of(sys.modules[d["__name__"]]))
        for h in self.holders(d):
            if isinstance(h, type) or vars_of(h) is d:
                return self.attribute(h, name)
        return None

    def attribute(self, h, name):
        owner = h if isinstance(h, type) else type(h)
        if owner.__module__ == "queue":  # it is the program's container, and does not grow for ever if it has a size
            return ("", "", 0) if vars_of(h).get("maxsize", 0) > 0 else self.of(h, 1)
        found, file, line = self.with_line(name, file_of(sys.modules.get(owner.__module__)))
        return f"{owner.__name__}.{found}", file, line

    @staticmethod
    def cached(h):
        """Returns the function whose results functools.lru_cache keeps, unless their number is limited."""
        code = getattr(vars_of(h)["__wrapped__"], "__code__", None)
        if code is None or h.cache_info().maxsize is not None:
            return "", "", 0
        return f"the cache of {code.co_name}", code.co_filename, code.co_firstlineno

    @staticmethod
    def with_line(name, file):
        """Returns the line of the file that makes a variable longer, or 0."""
        name_of = re.escape(name)
        grows = re.compile(rf"\b{name_of}(\[[^\]]*\])*({ADDED}|\s*=\s*{name_of}\s*\+)")
        lines = [i for i, text in enumerate(linecache.getlines(file), 1) if grows.search(text)]
        return name, file, lines[0] if lines else 0


def file_of(module):
    """Returns the file of a module. At the end of a program, its main module has none."""
    return getattr(module, "__file__", None) or (main[0] if getattr(module, "__name__", "") == "__main__" else "")


def vars_of(o):
    try:
        return object.__getattribute__(o, "__dict__")
    except (AttributeError, TypeError):
        return None


def frames():
    for f in list(sys._current_frames().values()):
        while f is not None:
            if own(f.f_code.co_filename):
                yield f
            f = f.f_back


def variable(f, o):
    """Returns the name of a local variable of a frame that holds a container; None if there is none.

    Before Python 3.13, f_locals of a function would change the dict that the function may have got from locals().
    """
    if sys.version_info >= (3, 13) or not f.f_code.co_flags & 1:
        return next((name for name, value in f.f_locals.items() if value is o), None)
    return f"a variable of {f.f_code.co_name}" if any(value is o for value in gc.get_referents(f)) else None


def hidden():
    """Returns the innermost function of the program if it makes a container longer, with the line if there is one."""
    code = next((f.f_code for f in frames() if f.f_code.co_flags & 1), None)
    if code is None:
        return "", "", 0
    last = max(line for _, _, line in code.co_lines() if line)
    body = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : last]
    lines = [i for i, text in enumerate(body, code.co_firstlineno) if re.search(rf"\w({ADDED})", text)]
    if not lines:
        return "", "", 0
    return f"a variable of {code.co_name}", code.co_filename, lines[0] if len(lines) == 1 else 0


# The hooks


def after(owner, name, hook):
    """Calls hook(self, args, kwargs) after a method has returned."""
    method, hook = getattr(owner, name), guarded(hook)

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        hook(self, args, kwargs)
        return result

    setattr(owner, name, wrapper)


def depth(name):
    return getattr(local, name, 0)


def inside(owner, name, level, then=None):
    """Counts the depth of calls of a method, so that what runs inside it is not counted by itself.

    After the outermost call, it calls then(self).
    """
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        if level == "keras":
            marks.before()
        setattr(local, level, depth(level) + 1)
        try:
            result = method(self, *args, **kwargs)
        finally:
            setattr(local, level, depth(level) - 1)
        if then and not depth(level):
            then(self)
        return result

    setattr(owner, name, wrapper)


def hook_function(module):
    Function = module.Function
    call = Function.__call__

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        stack = local.__dict__.setdefault("functions", [])
        if not stack and not depth("keras"):
            marks.before()
        stack.append(self)
        before = counts["trace"]
        try:
            result = call(self, *args, **kwargs)
        finally:
            stack.pop()
        if not stack:
            called(self, args, kwargs, counts["trace"] - before)
        return result

    Function.__call__ = __call__
    after(Function, "__init__", lambda self, args, kwargs: happened("function", str(self.__dict__.get("_name", ""))))


@guarded
def called(function, args, kwargs, traces):
    """Follows the outermost call of a function of TensorFlow."""
    state = function.__dict__.setdefault("_steadyfit", {"shapes": set(), "last": None})
    if function._jit_compile and len(state["shapes"]) < 4096:
        shapes = tuple(str(getattr(a, "shape", None)) for a in args)
        if shapes not in state["shapes"]:
            state["shapes"].add(shapes)
            happened("compiled shape", str(function._name), f"argument shapes {', '.join(shapes)}")
    if traces:
        now = arguments(function, args, kwargs) or {}
        if state["last"]:
            changed = [f"argument {k} was {state['last'][k]}, then {v}" for k, v in now.items() if state["last"].get(k, v) != v]
            happened("retrace", str(function._name), "; ".join(changed))
        state["last"] = now
    if not depth("keras"):
        marks.step("train" if state.get("trains") else "call")


@guarded
def arguments(function, args, kwargs):
    """Describes arguments as far as they decide about a trace."""
    import inspect

    try:
        names = list(inspect.signature(function.python_function).parameters)
    except (TypeError, ValueError):
        names = []
    given = {names[i] if i < len(names) else str(i + 1): a for i, a in enumerate(args)}
    given.update(kwargs)

    def text(a):
        if type(a) in (bool, int, float, str, type(None)):
            return f"{a!r:.40} (a Python {type(a).__name__})"
        shape = getattr(a, "shape", None)
        return f"{describe(a)} of shape {tuple(shape)}" if shape is not None else describe(a)

    return {k: text(a) for k, a in given.items()}


def hook_func_graph(module):
    make = module.func_graph_from_py_func

    @functools.wraps(make)
    def func_graph_from_py_func(name, *args, **kwargs):
        if not depth("trace"):  # the branches and bodies inside a function are no traces of their own
            happened("trace", str(name))
        local.trace = depth("trace") + 1
        try:
            return make(name, *args, **kwargs)
        finally:
            local.trace = depth("trace") - 1

    module.func_graph_from_py_func = func_graph_from_py_func


def hook_graph(module):
    Graph = module.Graph

    def added(self, args, kwargs):
        if type(self) is Graph:
            happened("graph operation")

    after(Graph, "_create_op_helper", added)


def hook_session(module):
    inside(module.BaseSession, "run", "session", lambda self: marks.step("run"))


def applied(self, args, kwargs):
    stack = getattr(local, "functions", None)
    if stack:
        stack[0].__dict__.setdefault("_steadyfit", {"shapes": set(), "last": None})["trains"] = True
    elif not depth("keras"):
        marks.step("train")


def hook_optimizer(name, *methods):
    def hook(module):
        owner = getattr(module, name)
        for m in methods:
            after(owner, m, applied)
        after(owner, "__init__", lambda self, args, kwargs: happened("optimizer", type(self).__name__))

    return hook


def hook_trainer(name):
    def hook(module):
        owner = getattr(module, name)
        for method in ("fit", "evaluate", "predict"):
            inside(owner, method, "keras")
        for kind in ("train", "test", "predict"):
            inside(owner, f"{kind}_on_batch", "keras", lambda self, kind=kind: marks.step(kind))

    return hook


def hook_callbacks(module):
    List = module.CallbackList
    last = {}

    def batch(kind):
        def ended(self, args, kwargs):
            # With steps_per_execution, a call ends several steps. at is the number of the last one.
            at = args[0] if args else kwargs.get("batch", 0)
            n = at - last.get(kind, -1) if at > last.get(kind, -1) else 1
            last[kind] = at
            marks.step(kind, n if isinstance(n, int) and 0 < n <= 10000 else 1)

        return ended

    def epoch(self, args, kwargs):
        last.pop("train", None)
        marks.epochs += 1

    def start(kind):
        return lambda self, args, kwargs: last.pop(kind, None)

    for kind in ("train", "test", "predict"):
        after(List, f"on_{kind}_begin", start(kind))
        after(List, f"on_{kind}_batch_end", batch(kind))
    after(List, "on_epoch_end", epoch)


def hook_layer(module):
    """Makes the outermost call of a layer or model by the program itself a step."""
    owner = module.Layer
    call = owner.__call__

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        if depth("keras") or depth("trace"):
            return call(self, *args, **kwargs)
        local.keras = 1
        try:
            result = call(self, *args, **kwargs)
        finally:
            local.keras = 0
        first = result[0] if isinstance(result, (list, tuple)) and result else result
        if type(first).__name__ != "KerasTensor":  # it is not the making of a model
            marks.step("call")
        return result

    owner.__call__ = __call__


def hook_models(name):
    @guarded
    def made(model):
        f = sys._getframe(1)
        while f is not None and not own(f.f_code.co_filename):
            if f.f_code.co_name in ("_maybe_rebuild", "build"):
                return  # a model makes this one for itself, as Sequential does
            f = f.f_back
        happened("model", type(model).__name__)

    return lambda module: inside(getattr(module, name), "__init__", "model", made)


def hook_all(*hooks):
    def hook(module):
        for h in hooks:
            h(module)

    return hook


def hook_datasets(module):
    def made(self, args, kwargs):
        if not depth("keras"):  # fit makes some
            happened("dataset")

    after(module.DatasetV2, "__init__", made)


def hook_generators(module):
    make = module._from_generator

    @functools.wraps(make)
    def _from_generator(*args, **kwargs):
        happened("dataset of a generator")
        return make(*args, **kwargs)

    module._from_generator = _from_generator


def hook_py_func(module):
    """Makes a call of tf.py_function outside of a function a step."""
    call = module._internal_py_func

    @functools.wraps(call)
    def _internal_py_func(*args, **kwargs):
        result = call(*args, **kwargs)
        if not depth("trace") and not depth("keras"):
            happened("eager py_function")
            marks.step("call")
        return result

    module._internal_py_func = _internal_py_func


def hook_torch(module):
    def stepped(*_):
        if not depth("keras"):
            marks.step("train")

    module.register_optimizer_step_post_hook(guarded(stepped))


HOOKS = {
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": hook_function,
    "tensorflow.python.framework.func_graph": hook_func_graph,
    "tensorflow.python.framework.ops": hook_graph,
    "tensorflow.python.client.session": hook_session,
    "tensorflow.python.data.ops.dataset_ops": hook_datasets,
    "tensorflow.python.ops.script_ops": hook_py_func,
    "tensorflow.python.data.ops.from_generator_op": hook_generators,
    "keras.src.optimizers.base_optimizer": hook_optimizer("BaseOptimizer", "apply"),
    "keras.src.backend.tensorflow.trainer": hook_trainer("TensorFlowTrainer"),
    "keras.src.backend.torch.trainer": hook_trainer("TorchTrainer"),
    "keras.src.backend.jax.trainer": hook_trainer("JAXTrainer"),
    "keras.src.callbacks.callback_list": hook_callbacks,
    "keras.src.layers.layer": hook_layer,
    "keras.src.trainers.trainer": hook_models("Trainer"),
    "tf_keras.src.optimizers.optimizer": hook_optimizer("_BaseOptimizer", "apply_gradients"),
    "tf_keras.src.optimizers.legacy.optimizer_v2": hook_optimizer("OptimizerV2", "apply_gradients"),
    "tf_keras.src.engine.training": hook_all(hook_trainer("Model"), hook_models("Model")),
    "tf_keras.src.callbacks": hook_callbacks,
    "torch.optim.optimizer": hook_torch,
    **dict.fromkeys(("tensorflow", "keras", "tf_keras", "torch", "jax"), lambda module: None),
}


class Finder(importlib.abc.MetaPathFinder):
    """Runs the hook of a module after the module."""

    def find_spec(self, name, path, target=None):
        hook = HOOKS.get(name)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            try:
                hook(module)
            except Exception as e:  # noqa: BLE001  the program must not see it
                missed.append(f"{name}: {e!r}")
            marks.imported()

        spec.loader.exec_module = exec_module
        return spec
