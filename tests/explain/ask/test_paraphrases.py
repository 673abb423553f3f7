"""Questions in the words of somebody who has not seen the retrieval.

Each file has 120 paraphrases, half of them clumsy, and 40 questions that have no answer here.
"""

import json
from pathlib import Path

import pytest

from telescope.explain.ask.conversation import Conversation
from telescope.explain.example import RIGHT

pytestmark = pytest.mark.slow

FILES = sorted(Path(__file__).parent.glob("paraphrases*.jsonl"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_most_paraphrases_find_their_question_and_strangers_are_refused(file: Path) -> None:
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    asked = [row for row in rows if row["id"]]
    strangers = [row for row in rows if not row["id"]]
    first = 0
    among_three = 0
    for row in asked:
        reply = Conversation(RIGHT).ask(row["text"])
        first += reply.answered == row["id"]
        among_three += row["id"] in (reply.answered, *reply.nearest)
    refused = sum(Conversation(RIGHT).ask(row["text"]).answered is None for row in strangers)
    print(f"\n{file.stem}: top 1 {first}, top 3 {among_three} of {len(asked)}; {refused} refused")
    assert first >= 0.85 * len(asked)
    assert among_three >= 0.95 * len(asked)
    assert refused >= 0.90 * len(strangers)
