"""The process in which math_verify runs: one question per line. Imports nothing of ours.

math_verify limits its time with an alarm, which only a main thread can have.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    from math_verify import parse, verify

    for line in sys.stdin:
        asked = json.loads(line)
        seconds = asked["seconds"]
        right = parse(asked["answer"], parsing_timeout=seconds)
        right = right or parse(f"${asked['answer']}$", parsing_timeout=seconds)
        score = None
        if right:
            given = parse(asked["text"], parsing_timeout=seconds)
            score = float(verify(right, given, timeout_seconds=seconds))
        print(json.dumps(score), flush=True)


if __name__ == "__main__":
    main()
