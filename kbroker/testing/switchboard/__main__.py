"""A switchboard as a process: it takes calls from stdin. See remote.py."""

from __future__ import annotations

import json
import sys

from kbroker.testing.switchboard.board import Switchboard


def main() -> None:
    """Perform the calls on stdin until it ends."""
    board = Switchboard()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        arguments = [tuple(each) if isinstance(each, list) else each for each in arguments]
        print(json.dumps(getattr(board, method)(*arguments)), flush=True)
    board.close()


if __name__ == "__main__":
    main()
