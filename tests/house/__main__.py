"""Print the measures of the sources today and at the commit of the review, and keep them in docs/internals/house.md.

python -m tests.house            print the table and write it
python -m tests.house FOLDER     print the measures of another checkout
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.house.measures import measures
from tests.house.page import table, write

if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.writelines(f"{row.name}: {row.value}\n" for row in measures(Path(sys.argv[1])))
    else:
        rows = table()
        sys.stdout.write(f"{rows.markdown()}\n")
        write(rows)
