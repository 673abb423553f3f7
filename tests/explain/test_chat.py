"""The user's turn of prompts that chat templates have wrapped."""

import pytest

from telescope.explain.chat import user_turn
from telescope.explain.numbers import from_numbers
from telescope.explain.terminal import render

QWEN = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = {
    "chatml": QWEN,
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
    "phi": "<|user|>\n{}<|end|>\n<|assistant|>\n",
    "mistral": "<s>[INST] {} [/INST]",
    "deepseek": "<｜begin▁of▁sentence｜><｜User｜>{}<｜Assistant｜>",
}


@pytest.mark.parametrize("name", PROMPTS)
def test_the_users_turn_is_found(name):
    question = "How many eggs\nare left?"
    assert user_turn(PROMPTS[name].format(question)) == question


def test_of_several_turns_the_last_one_counts():
    example = QWEN.format("An example").removesuffix("<|im_start|>assistant\n")
    assert user_turn(example + QWEN.format("The question")) == "The question"


@pytest.mark.parametrize("prompt", ["请问1+1=2？", "", "no <|im_start|> turn"])
def test_a_prompt_without_a_template_stays_whole(prompt):
    assert user_turn(prompt) == prompt


@pytest.mark.parametrize("extent", ["first", "token"])
def test_the_screen_shows_the_question_and_not_the_template(extent):
    given = {"prompt": QWEN.format("How many eggs are left?"), "rewards": [1.0], "values": [0.4]}
    screen = render(from_numbers(given), lang="en", width=80, extent=extent)
    assert "How many eggs are left?" in screen
    assert "im_start" not in screen
