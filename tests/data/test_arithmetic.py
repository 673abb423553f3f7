"""The built-in task: both standing prompts are trained on and held out."""

from __future__ import annotations

import random

import pytest

from telescope.data.arithmetic import (
    FORMS,
    held_out,
    is_true,
    make_tokenizer,
    model_folder,
    right_answer,
    row,
    rows,
    statements,
    total,
    verdict,
    warm_start_batches,
)


@pytest.mark.parametrize("evaluation", [False, True])
def test_every_statement_is_asked_in_both_forms_and_half_are_true(evaluation: bool) -> None:
    chosen = rows(evaluation=evaluation)
    asked = {row["prompt"] for row in chosen}
    expected = [s for s in statements() if held_out(s) == evaluation]
    assert asked == {form.format(*s) for s in expected for form in FORMS}
    for start in ("请问", "你知道"):
        own = [row for row in chosen if row["prompt"].startswith(start)]
        assert len(own) == len(chosen) / 2
        assert sum(row["truth"] for row in own) == len(own) / 2


def test_a_held_out_statement_is_trained_on_in_no_form() -> None:
    trained = {row["prompt"] for row in rows(evaluation=False)}
    held = {row["prompt"] for row in rows(evaluation=True)}
    assert not trained & held
    assert "你知道1+1=2吗？" in trained
    assert "请问1+1=2？" in trained


@pytest.mark.parametrize("form", FORMS)
def test_the_right_answer_has_full_marks_in_both_forms(form: str) -> None:
    for statement in [(1, 1, 2), (1, 1, 3), (0, 9, 9), (4, 5, 0)]:
        asked = row(*statement, form)
        text = right_answer(*statement)
        assert verdict([asked["prompt"]], [text], [asked["truth"]]) == [1.0]
        assert total([asked["prompt"]], [text], [asked["answer"]]) == [1.0]


def test_the_warm_start_shows_both_forms_and_grows_noisy_only_late() -> None:
    tokenizer = make_tokenizer()
    steps = 80
    batches = list(warm_start_batches(tokenizer, steps, random.Random(0)))
    texts = [tokenizer.batch_decode(ids, skip_special_tokens=True) for ids, _ in batches]
    right = {form.format(*s) + right_answer(*s) for s in statements() for form in FORMS}
    held = {form.format(*s) for s in statements() if held_out(s) for form in FORMS}
    for step, batch in enumerate(texts):
        start = ("请问", "你知道")[step % 2]
        assert all(text.startswith(start) for text in batch)
        assert not any(text.startswith(tuple(held)) for text in batch)
        if step < steps * 0.75:
            assert set(batch) <= right
    late = [text in right for batch in texts[-4:] for text in batch]
    assert 0.3 < sum(late) / len(late) < 0.65
    for ids, labels in batches[:2]:
        answer = tokenizer.decode(ids[0][labels[0] != -100], skip_special_tokens=True)
        assert answer.startswith(("是的", "不对"))


def test_the_model_of_the_package_was_made_for_these_words() -> None:
    """If it fails: tools/make_builtin_model.py makes the model anew."""
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(model_folder())
    made = make_tokenizer()
    assert own.get_vocab() == made.get_vocab()
    text = FORMS[0].format(1, 1, 2) + right_answer(1, 1, 2)
    assert own(text).input_ids == made(text).input_ids
    assert own.eos_token_id == made.eos_token_id


def test_half_of_what_the_warm_start_shows_is_true() -> None:
    tokenizer = make_tokenizer()
    ids, _ = next(warm_start_batches(tokenizer, 10, random.Random(1)))
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    true = {FORMS[0].format(*s) for s in statements() if is_true(s)}
    share = sum(text.startswith(tuple(true)) for text in texts) / len(texts)
    assert 0.35 < share < 0.75
