"""Native stacks that allocated what grows, from the heap profile of jemalloc (`steadyfit watch --native-stacks`).

jemalloc records the stack of about one allocation in 512 KiB. A thread takes profiles, and compares each with the latest
one of the first half of the time, so that the start of the program does not count.
"""

import collections
import ctypes
import math
import os
import re
import tempfile
import threading
import time

MOST, LEAST = 3, 0.1  # the number of stacks to report, and the least share of the growth of one
FUNCTIONS = 8  # of a stack, the innermost first
INTERPRETER = "_PyEval_EvalFrameDefault"  # the callers of it are not shown
EVERY, SHARE = 0.5, 0.05  # seconds between two profiles, and the share of the time that they may take
# Functions that pass an allocation on.
PASSES = re.compile(
    r"(operator new|(aligned_|pvm|vm|c|re|m)alloc|aligned_alloc|posix_memalign|tsl::port::AlignedMalloc|je_)"
)


class Address(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    ]


class Stacks:
    def __init__(self):
        self.process = ctypes.CDLL(None)
        self.process.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Address)]
        self.names = {}  # of functions, by address
        self.taken = []  # of the profiles: (time, steps, bytes by stack)

    def begin(self, steps, send, miss):
        """Takes profiles until the program ends, and sends what has grown."""

        def take():
            stop, began = threading.Event(), time.monotonic()
            while not stop.wait(max(EVERY, (time.monotonic() - began) / SHARE)):
                began = time.monotonic()
                try:
                    send({"stacks": self.grown(began, dict(steps))})
                except Exception as e:  # noqa: BLE001  the program must not see it
                    return miss(f"native stacks: {e}")

        threading.Thread(target=take, name="steadyfit-stacks", daemon=True).start()

    def grown(self, now, steps):
        """Takes a profile. It returns the stacks that grew most since an earlier one."""
        new = parse(self.profile())
        half = [t for t in self.taken if t[0] <= (now + self.taken[0][0]) / 2] if self.taken else []
        self.taken = half[-1:] + self.taken[len(half) :] + [(now, steps, new)]
        before, steps_before, old = self.taken[0]
        grown = collections.Counter()
        for stack, held in new.items():
            if held != old.get(stack, 0):
                grown[self.functions(stack)] += held - old.get(stack, 0)
        least = LEAST * sum(grown.values())
        return [
            {
                "functions": functions,
                "bytes": by,
                "seconds": now - before,
                "steps": {kind: n - steps_before.get(kind, 0) for kind, n in steps.items()},
            }
            for functions, by in grown.most_common(MOST)
            if by > 0 and by >= least and now > before
        ]

    def profile(self):
        mallctl = getattr(self.process, "mallctl", None)
        if mallctl is None:
            raise RuntimeError("jemalloc is not loaded")
        handle, path = tempfile.mkstemp(prefix="steadyfit-heap-")
        os.close(handle)
        try:
            name = ctypes.c_char_p(path.encode())
            if mallctl(b"prof.dump", None, None, ctypes.byref(name), ctypes.c_size_t(ctypes.sizeof(name))) != 0:
                raise RuntimeError("this jemalloc was built without profiles of the heap")
            with open(path) as f:
                return f.read()
        finally:
            os.unlink(path)

    def functions(self, stack):
        """Returns the functions up to the interpreter, without those that only pass an allocation on."""
        names = []
        for address in stack.split():
            if address not in self.names:
                self.names[address] = self.function(address)
            name = self.names[address]
            if name and name not in names[-1:]:
                names.append(name)
            if len(names) == FUNCTIONS or name == INTERPRETER:
                break
        return tuple(names)

    def function(self, address):
        found = Address()
        # The address of a call is before that of its return.
        if not self.process.dladdr(int(address, 16) - 1, ctypes.byref(found)):
            return ""
        library = os.path.basename(os.fsdecode(found.file))
        name = demangled(found.name) if found.name else f"({library})"
        return "" if PASSES.match(name) or "jemalloc" in library else name


def parse(text):
    """Returns the estimated bytes in use of each stack of a profile in jemalloc's format heap_v2."""
    head, complete, _ = text.partition("\nMAPPED_LIBRARIES:\n")
    period = re.match(r"heap_v2/(\d+)\n", head)
    if not period or not complete:
        raise RuntimeError("the profile of jemalloc is not one of heap_v2")
    every, held = int(period[1]), {}
    for stack, count, size in re.findall(r"^@ (.*)\n\s*t\*: (\d+): (\d+)", head, re.MULTILINE):
        n, total = int(count), int(size)
        # An allocation of n bytes is recorded with the probability 1-exp(-n/every).
        held[stack] = held.get(stack, 0) + (total / -math.expm1(-total / n / every) if n else 0)
    return held


def demangled(name):
    """Returns the name of a function of C++ without its parameters."""
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    text = library.__cxa_demangle(name, None, None, ctypes.byref(status))
    if not text:
        return name.decode(errors="replace")
    try:
        plain = ctypes.string_at(text).decode(errors="replace")
    finally:
        free = ctypes.CDLL(None).free
        free.argtypes = [ctypes.c_void_p]
        free(text)
    for brackets in (r"<[^<>]*>", r"\([^()]*\)"):
        shorter = None
        while shorter != plain:
            shorter, plain = plain, re.sub(brackets, "", plain)
    plain = re.sub(r"\s+(const|\[clone.*)$", "", plain)
    return plain if "operator" in plain else plain.split(" ")[-1]
