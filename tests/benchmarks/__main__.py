"""`make bench` measures, prints, and keeps its tables in docs/internals/benchmarks.md.

`python -m tests.benchmarks step rollout` measures these parts alone, and the page keeps the others.
"""

from __future__ import annotations

import sys

from grpo_local import settings
from tests.benchmarks import page
from tests.benchmarks.measure import apart
from tests.benchmarks.parts import PARTS, run


def main() -> None:
    """Measure the parts that were named, or all, and write the page again."""
    chosen = sys.argv[1:] or PARTS
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(PARTS)}")
    settings.apply()
    for part in chosen:
        section = page.Section(findings=apart(run, part), measured=page.here())
        sys.stdout.write(page.render([section]))
        page.keep(part, section, PARTS)


if __name__ == "__main__":
    main()
