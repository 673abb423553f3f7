"""All 23 questions, with the numbers of whatever sample is at hand."""

import re
import string
from dataclasses import replace

import pytest

from telescope.algorithms.definitions.notation import num
from telescope.errors import TelescopeError
from telescope.explain.arithmetic import fill
from telescope.explain.numbers import from_numbers
from telescope.explain.questions import EXAMPLE, _questions, answer, facts, titles
from telescope.explain.sample import Sample
from telescope.explain.settings import Settings
from tests.explain.samples import demo, trained, with_tool

THREE = from_numbers({"rewards": [0.0, 0.0, 1.0], "values": [0.3, 0.4, 0.6], "lam": 0.95})
LANGS = pytest.mark.parametrize("lang", ["zh", "en"])
ALL = range(1, 24)


@LANGS
def test_there_are_23_questions_with_titles(lang):
    assert [number for number, _ in titles(lang)] == list(ALL)
    assert len({title for _, title in titles(lang)}) == 23


@LANGS
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_every_question_has_an_answer_for_every_kind_of_sample(lang, level):
    one = Sample([0], [b"x"], [1], {"token_level_rewards": [1.0], "values": [0.4]})
    bare = Sample([0], [b"x"], [0], {})
    raw = replace(demo(), settings=Settings.of(whiten=False))
    for sample in (
        demo(),
        with_tool(),
        THREE,
        one,
        bare,
        raw,
        *trained(1, estimator="monte_carlo"),
        *trained(1, estimator="td0"),
    ):
        for number in ALL:
            text = answer(number, sample, lang, level)
            assert text
            assert not re.search(
                r"\{|\}(?!\})|nan", text.replace("{n<N}", "").replace("{t+1}", "")
            ), (number, text)


@LANGS
def test_both_languages_and_levels_name_the_same_numbers(lang):
    """The child's numbers are a part of the expert's facts: nothing else is computed for a child."""
    known = {
        number
        for value in facts(demo(), lang).values()
        for number in re.findall(r"\d+\.\d+", value)
    }
    for number in ALL:
        own = set(re.findall(r"\d+\.\d+", answer(number, demo(), lang, "kid")))
        assert own <= known | {"0.01", "0.9", "0.91"}, number  # the counterexample of question 3


def test_the_two_languages_say_the_same_numbers():
    for number in ALL:
        zh, en = (
            set(re.findall(r"\d+\.\d+", answer(number, demo(), lang))) for lang in ("zh", "en")
        )
        assert zh == en, number


@LANGS
def test_every_question_has_a_childs_title_and_answer_without_symbols(lang):
    symbol = re.compile(r"[γλδπρμσβ]|V_|\[|\d\.?e[+−-]?\d|critic|TD|GAE")
    small = replace(
        demo(),
        columns={
            **demo().columns,
            "ref_log_prob": [x - 1e-7 for x in demo().columns["old_log_probs"]],
        },
    )
    three = replace(THREE, token_bytes=[b"a", b"b", b"c"])
    for sample in (demo(), small, three, EXAMPLE, *trained(2)):
        for number, title in titles(lang, "kid"):
            assert f"kid_{lang}" in _questions()[number]
            assert not symbol.search(title), number
            assert not symbol.search(answer(number, sample, lang, "kid")), (
                number,
                answer(number, sample, lang, "kid"),
            )


def test_each_placeholder_is_a_fact():
    known = facts(demo(), "en").keys() | {"four"}
    for entry in _questions().values():
        for key, text in entry.items():
            if key != "needs" and key.startswith(("expert", "kid_zh", "kid_en")):
                assert {name for _, name, _, _ in string.Formatter().parse(text) if name} <= known


def test_the_example_of_three_tokens():
    assert (
        "λ=0: [0.1, 0.2, 0.4]; λ=0.5: [0.3, 0.4, 0.4]; λ=0.95: [0.651, 0.58, 0.4]; λ=1: [0.7, 0.6, 0.4]"
        in answer(11, THREE, "en")
    )
    assert "δ[0] = 0.1" in answer(12, THREE, "en")
    assert "G − V = 0.7" in answer(12, THREE, "en")
    assert "the extra 0.6 being the later δ" in answer(12, THREE, "en")
    assert "the sum of the advantages from it on is 1.631" in answer(13, THREE, "en")
    assert "n=1: 0.1 ×0.05, n=2: 0.3 ×0.0475, n=3: 0.7 ×0.9025, together 0.651" in answer(
        14, THREE, "en"
    )
    assert "[90.25, 95, 100] %" in answer(20, THREE, "en")


def test_the_value_after_a_token_is_the_next_one_the_policy_will_use():
    text = answer(9, with_tool(), "en")
    assert "values[0] = 0.5 is the valuation before token 0" in text
    assert "after it, it is V[3] = 0.4" in text  # tokens 1 and 2 are the tool's


def test_a_cut_off_response_says_what_follows_its_end():
    assert (
        "After the last token 5 it is 0.8 (the response was cut off; the critic's estimate continues it)."
        in answer(15, with_tool(), "en")
    )
    assert "treated as the end" in answer(15, replace(with_tool(), bootstrap=0.0), "en")
    assert "nothing is left to come" in answer(15, THREE, "en")


def test_whitening_names_the_batch_or_says_that_there_is_none():
    sample = trained(1)[0]
    assert "taken once over all valid tokens of the whole batch" in answer(23, sample, "en")
    for one in (THREE, fill(THREE)):  # typed by hand, and through the roles as a batch of one
        assert "of this response alone" in answer(23, one, "en")
        assert "只来自这一条回答" in answer(23, one, "zh")
    assert "Here there is none" in answer(23, with_tool(), "en")


@LANGS
def test_returns_are_called_what_the_estimator_makes_them(lang):
    for number in (18, 19):
        assert "λ-return" in answer(number, trained(1)[0], lang)
        assert "λ-return" not in answer(number, trained(1, estimator="td0")[0], lang)


def test_the_clipped_objective_stands_beside_the_surrogate():
    text = answer(7, demo(), "en")  # token 3 is clipped at 1.2
    whitened, ratio = demo().columns["whitened"], demo().actor_updates[-1].ratio
    trpo = sum(p * a for p, a in zip(ratio, whitened, strict=True)) / 7
    ppo = -sum(demo().actor_updates[-1].loss) / 7
    assert f"mean {num(trpo)}; PPO's clipped terms" in text
    assert f"mean {num(ppo)}. Whitened" in text
    assert ppo < trpo
    assert "With the new log-probs given" in answer(
        7, from_numbers({"old": [-0.5], "new": [-0.4], "advantages": [1.0]}), "en"
    )


@LANGS
def test_an_answer_about_a_token_is_about_the_one_asked_for(lang):
    assert "values[3] = 0.6" in answer(9, demo(), lang, token=3)
    assert "δ[3] = 0.102" in answer(12, demo(), lang, token=3)
    assert "N=4" in answer(14, demo(), lang, token=3)
    assert "n=4: 0.383 ×0.8574" in answer(14, demo(), lang, token=3)
    assert answer(9, demo(), lang, token=0) == answer(9, demo(), lang)
    for number in ALL:
        assert answer(number, demo(), lang, "kid", token=6)
    with pytest.raises(TelescopeError, match="token 1 was not written by the policy"):
        answer(9, with_tool(), lang, token=1)


def test_signs_that_whitening_changed_are_listed_only_where_there_are_some():
    assert "the sign of 3 tokens changed ([4, 5, 6])" in answer(23, demo(), "en")
    calm = from_numbers({"rewards": [0, 1], "values": [0.3, 0.6], "mean": 0, "std": 1})
    assert "no sign changed: after" in answer(23, calm, "en")
    assert "，没有 token 变号：" in answer(23, calm, "zh")


def test_a_sample_without_the_columns_gets_the_built_in_example_and_says_so():
    bare = Sample([0], [b"x"], [1], {"values": [0.4]})
    assert answer(12, bare, "en").startswith(
        "(This sample has no token_level_rewards; the numbers are of the built-in example"
    )
    assert answer(12, bare, "zh").startswith("（这条样本没有 token_level_rewards")


def test_a_question_that_does_not_exist_is_refused():
    with pytest.raises(TelescopeError, match="no question 24: there are 1 to 23"):
        answer(24, demo())


def numbers_of(**given):
    return from_numbers({"rewards": [0.1, 1.0, 0.3], "values": [0.3, 0.4, 0.1], **given})


def test_other_lambdas_are_those_where_the_runs_own_depends_on_the_length():
    text = answer(11, numbers_of(lam_alpha=0.5), "en")
    assert (
        "λ=0: [0.2, 0.7, 0.2]; λ=0.5: [0.6, 0.8, 0.2]; λ=0.95: [1.045, 0.89, 0.2]; λ=1: [1.1, 0.9, 0.2]"
        in text
    )
    assert "This sample (λ=0.3333): A = [0.4556, 0.7667, 0.2]" in text
    assert "really got G[0] = 1.4," in answer(5, numbers_of(lam_alpha=0.5), "en")


def test_a_critic_with_a_lambda_of_its_own_has_targets_of_its_own():
    own = from_numbers(
        {"rewards": [-0.1, 0.2, 1.0], "values": [0.3, 0.4, 0.6], "lam": 0.5, "lam_critic": 1.0}
    )
    assert fill(own).columns["returns"] == pytest.approx([1.1, 1.2, 1.0])
    assert fill(own).columns["advantages"] == pytest.approx([0.3, 0.6, 0.4])
    assert "advantage 0.3, target 0.8 + 0.3 = 1.1." in answer(2, own, "en")
    assert "returns = [1.1, 1.2, 1] = advantages of λ=1 + values" in answer(2, own, "en")
    assert "λ-returns (λ=1)" in answer(19, own, "en")
    for number in (1, 2, 4, 11, 18, 19):
        assert "λ of its own, 1, not A's 0.5" in answer(
            number, replace(own, columns={**own.columns, "token_level_scores": [0.0] * 3}), "en"
        )
        assert "another one" in answer(
            number,
            replace(own, columns={**own.columns, "token_level_scores": [0.0] * 3}),
            "en",
            "kid",
        )
    assert "of its own" not in answer(1, THREE, "en")


@LANGS
@pytest.mark.parametrize("level", ["expert", "kid"])
def test_a_tools_tokens_at_the_end_and_no_later_steps(lang, level):
    """γλ = 0 and tokens with mask 0 after the last that the policy wrote."""
    for given in ({"lam": 0.0}, {"gamma": 0.0}, {"estimator": "td0"}):
        for number in ALL:
            assert answer(number, numbers_of(mask=[1, 1, 0], **given), lang, level)


def test_what_was_cut_off_is_a_guess_and_not_what_came():
    cut = from_numbers(
        {
            "rewards": [0.1, 1.0],
            "values": [0.3, 0.4],
            "estimator": "monte_carlo",
            "bootstrap": 0.5,
            "gamma": 0.9,
        }
    )
    assert "really got G[0] = 1 (plus a guess where it was cut off, 0.405)" in answer(5, cut, "en")
    assert "真正得到的是 1（截断处另接一个猜测 0.405）" in answer(5, cut, "zh", "kid")
    assert "G[0] − V[0] = 1.405 − 0.3 = 1.105" in answer(10, cut, "en")


def test_sums_have_the_digits_that_they_need():
    found = 0
    for given in (
        {"rewards": [-0.0037], "values": [22.45]},
        {"rewards": [0.0, 0.0], "values": [122.004, 131.146], "gamma": 0.99},
    ):
        for number in (1, 2, 9, 10):
            text = answer(number, from_numbers(given), "en").replace("−", "-").replace("×", "*")
            for left, right in re.findall(
                r"= ([\d.()+* -]*[+-] [\d.()+* -]*) = (-?\d*\.?\d+)", text
            ):
                assert eval(left) == pytest.approx(float(right), rel=2e-3), (number, left, right)
                found += 1
    assert found > 8


def test_a_huber_loss_is_said_and_used():
    huber = from_numbers({"rewards": [0.0, 1.0], "values": [0.2, 0.5], "huber_delta": 0.1})
    text = answer(4, huber, "en")
    assert "plain loss H(" in text
    assert "Huber loss H: ½·error² up to an error of 0.1" in text


def test_rejected_tokens_take_no_part_in_the_terms():
    given = {
        "old": [-0.5, -1.0, -2.0],
        "new": [-0.4, -1.5, -1.0],
        "rollout_log_probs": [-0.9, -1.1, -1.9],
        "reject": "token",
    }
    text = answer(7, numbers_of(**given, reject_high=1.3), "en")
    assert "ρ = [0.6065, 2.718]" in text
    assert "Tokens left out of the update: [0]." in text
