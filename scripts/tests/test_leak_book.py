"""What the pages of docs/leaks say of programs and runs."""

from __future__ import annotations

from typing import Any

import pytest

import leak_book

PROGRAM = '''"""A list grows.

Report: https://example.org/1 (2020), a list grows.
"""

import sys

mended = sys.argv[1:] == ["mended"]
if not mended:
    kept = []
for i in range(60 if mended else 20):
    if mended:
        last = make(i)
    else:
        # all of them
        kept.append(make(i))
    use(limit=10 if mended else None)
'''


def test_variants() -> None:
    assert leak_book.specialized(PROGRAM, mended=False) == [
        "kept = []",
        "for i in range(20):",
        "    kept.append(make(i))",
        "    use(limit=None)",
    ]
    assert leak_book.specialized(PROGRAM, mended=True) == [
        "for i in range(20):",
        "    last = make(i)",
        "    use(limit=10)",
    ]


def run(verdict: str, low: float = 0, estimate: float = 0, high: float = 0) -> dict[str, Any]:
    return {"verdict": verdict, "unit": "step", "slope": {"estimate": estimate, "low": low, "high": high}}


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        ("leak leak leak", "leaks in each version that was measured."),
        ("level - level", "is level in each version that was measured."),
        ("leak level level", "leaks up to X 1, and is level since 2."),
        ("level - leak", "is level up to X 1, and leaks since 3."),
        ("leak level leak", "leaks with X 1, 3; is level with X 2."),
        ("leak level+leak level", "leaks with X 1; is undecided with X 2; is level with X 3."),
    ],
)
def test_history(verdicts: str, text: str) -> None:
    cells = {str(i + 1): [run(v) for v in some.split("+") if v != "-"] for i, some in enumerate(verdicts.split())}
    assert leak_book.history(cells, "X") == text


def test_rate_of_runs() -> None:
    kib = 1024
    assert leak_book.rate([run("leak", 2 * kib, 3 * kib, 4 * kib), run("leak", kib, 5 * kib, 8 * kib)]) == (
        "4.0 KiB [1.0, 8.0] per step"
    )
    assert leak_book.rate([run("level", -0.2, -0.1, 20)]) == "0 B [0, 20] per step"
    assert leak_book.rate([run("level", 0, 1, 2), run("undecided", 10, 20, 30)]) == "1 B [0, 2] per step"
    assert leak_book.rate([run("undecided", 10, 20, 30)]) == "–"
    assert leak_book.rate([]) == "–"
