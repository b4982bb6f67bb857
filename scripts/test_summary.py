#!/usr/bin/env python3
"""Print the counts of all JUnit reports in a folder, and their sum.

    scripts/test_summary.py out/test

The exit code is 1 if a test failed, or if there is no report.
"""

import pathlib
import sys
import xml.etree.ElementTree as tree


def counts(report: pathlib.Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a report; one failure if it cannot be read."""
    try:
        suites = list(tree.parse(report).iter("testsuite"))
    except (OSError, tree.ParseError):
        return 0, 1, 0
    total, failed, skipped = (
        sum(int(s.get(name, 0)) for s in suites for name in names)
        for names in (("tests",), ("failures", "errors"), ("skipped",))
    )
    return total - failed - skipped, failed, skipped


def main() -> int:
    reports = sorted(pathlib.Path(sys.argv[1]).glob("*.xml"))
    rows = {report.stem: counts(report) for report in reports}
    rows["total"] = tuple(map(sum, zip(*rows.values()))) if rows else (0, 0, 0)
    for title, (passed, failed, skipped) in rows.items():
        print(f"{title}: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if not reports or rows["total"][1] else 0


if __name__ == "__main__":
    sys.exit(main())
