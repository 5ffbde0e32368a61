"""``python -m tests.checker HISTORY.jsonl [--json]``: judge a history."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.checker.history import HistoryError, read_history
from tests.checker.verdict import check

NOT_A_HISTORY = 3


def main() -> int:
    """Print the verdict; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.checker")
    parser.add_argument("history", type=Path)
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    arguments = parser.parse_args()
    try:
        verdict = check(read_history(arguments.history))
    except (HistoryError, OSError) as error:
        print(error, file=sys.stderr)
        return NOT_A_HISTORY
    print(json.dumps(verdict.to_json(), indent=2) if arguments.json else verdict.to_text())
    return verdict.judgement.exit_code


if __name__ == "__main__":
    sys.exit(main())
