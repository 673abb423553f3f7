"""A wrong file of numbers gets one clear line."""

import pytest

from telescope.errors import TelescopeError
from telescope.explain.numbers import read_numbers
from tests.explain.number_files import read_one


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"valuse": [1.0]}, "unknown name 'valuse'; did you mean 'values'?"),
        ({"values": [0.1, "x"]}, r"values\[1\] = 'x' is not a number"),
        ({"values": [0.1], "gamma": 2.0}, "gamma = 2: input should be less than or equal to 1"),
        ({"values": [0.1], "estimator": "gea"}, "use one of gae, monte_carlo, td0"),
        ({"values": [0.1], "V": [0.1]}, "values is given twice"),
        ({"values": [0.1], "mask": [0]}, "at least one 1"),
        ({"values": [0.1, 0.2], "mask": [1, 0], "scores": [0.0, 1.0]}, "a score of 1 on token 1"),
        ({"new": [-0.1], "values": [0.1]}, "need the old ones too"),
        (
            {"old": [0.9], "values": [0.1]},
            r"old_log_probs\[0\] = 0.9: a log-probability is at most 0",
        ),
        ({"score": 1.0, "values": [0.1], "beta": 0.1}, "beta = 0.1 needs the kl of each token"),
        ({"values": [0.1], "mean": 0.1}, "give whiten_mean and whiten_std together"),
        ({"values": [0.1], "whiten": "maybe"}, "use true or false"),
        ({"values": [0.1], "lam_alpha": 0}, r"lam_alpha = 0: it must lie between 1e-30 and 1e\+30"),
        ({"values": [0.1], "lam_alpha": -1}, "lam_alpha = -1: it must lie between"),
        (
            {"values": [0.1], "lam_critic": 1.5},
            "lam_critic = 1.5: input should be less than or equal to 1",
        ),
        ({"values": [0.1], "huber_delta": 0}, "huber_delta = 0: it must lie between"),
        ({"values": [0.1], "eps": -0.1}, "eps = -0.1: input should be greater than or equal to 0"),
        ({"values": [0.1], "mean": 0.0, "std": 1e-320}, "std = 9.99989e-321: it must lie between"),
        (
            {"values": [0.1], "bootstrap": 1e308},
            r"bootstrap is too large: give numbers between −1e\+30 and 1e\+30",
        ),
        ({"values": [0.1, -1e300]}, r"values\[1\] is too large"),
        ({"values": [0.1], "beta": 1e300}, "beta is too large"),
        ({"ref": [-1e300], "old": [-0.1]}, r"ref_log_prob\[0\] is too large"),
        ({"values": [0.1], "score": 1e39}, r"score.* is too large"),
        (
            {"values": [0.1], "reject": 1},
            "reject = 1.*: input should be 'off', 'token', 'sequence', 'geometric', 'token_k2'",
        ),
        (
            {"values": [0.1], "importance": "yes"},
            "importance = 'yes': input should be 'off', 'token' or 'sequence'",
        ),
        ({"values": [0.1], "reject_low": 0}, "reject_low = 0: it must lie between"),
        ({"values": [0.1], "reject_low": 3}, "reject_low = 3 keeps nothing below reject_high = 2"),
    ],
)
def test_a_mistake_gets_one_clear_line(data, message, write):
    with pytest.raises(TelescopeError, match=message) as error:
        read_one(write(data))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.toml", "values = [1", "is not valid TOML"),
        ("x.toml", "values = [.3", "is not valid TOML"),
        ("x.json", "[1, 2]", r'names and numbers, e\.g\. \{"values": \[0\.3, 0\.4\]\}, not 1'),
        ("x.json", "7", "names and numbers.*not 7"),
        ("x.json", "[]", "no response: give at least one"),
        ("x.json", '{"responses": 3}', "no response: give at least one"),
        ("x.toml", "responses = []", "no response: give at least one"),
        ("x.csv", "response,values\n", "no response: give at least one"),
        (
            "x.json",
            '{"values": [[0.1], [0.2]], "rewards": [[1]]}',
            "rewards has 1 rows and values has 2: every list needs one per response",
        ),
        (
            "x.json",
            '{"values": [[0.1, 0.2], [0.3]], "rewards": [[0, 1], [0, 1]]}',
            "response 1: token_level_rewards has 2 numbers and values",
        ),
        ("x.json", '{"values": [[0.1], []]}', "response 1: no token"),
        (
            "x.json",
            '{"values": [[0.1], 0.2]}',
            r"response 1: values = 0\.2: give a list with one number per token",
        ),
        (
            "x.json",
            '[{"values": [0.1], "lam": 1}, {"values": [0.1]}]',
            r"lam is 1\.0 in response 0 and 0\.95 in response 1: a batch has one",
        ),
        (
            "x.json",
            '[{"advantages": [1], "mean": 0, "std": 1}, {"advantages": [1]}]',
            "whiten_mean is 0.0 in response 0 and None in response 1",
        ),
        (
            "x.json",
            '[{"advantages": [1]}, {"values": [1]}]',
            "response 1 has no advantages: whitening takes all responses",
        ),
        ("x.json", '{"values": [NaN]}', "is not a number"),
        ("x.json", '{"values": [Infinity]}', r"values\[0\] is too large"),
        ("x.json", f'{{"values": [{"9" * 400}]}}', r"values\[0\] is too large"),
        ("x.toml", f"values = [0x{'f' * 5000}]", r"values\[0\] is too large"),
        (
            "x.json",
            '{"values": [0.1, 0.2], "rewards": [1]}',
            "token_level_rewards has 1 numbers and values has 2",
        ),
        ("x.json", "{}", r"no token.*values = \[0\.3, 0\.4\]"),
        ("x.json", '{"tokens": "是的"}', "tokens must be a list"),
        ("x.json", '{"values": 3}', "give a list with one number per token"),
        ("x.csv", "values,kl\n1\n", "every row needs as many cells"),
        ("x.csv", "values\n.3\n\nabc\n", "is not a number"),
        ("x.csv", "", "no token"),
        ("x.txt", "values", "must end in .toml, .json or .csv"),
    ],
)
def test_a_broken_file_gets_one_clear_line(name, text, message, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(TelescopeError, match=message):
        read_numbers(tmp_path / name)


def test_a_missing_or_binary_file_gets_one_clear_line(tmp_path):
    with pytest.raises(TelescopeError, match="cannot read"):
        read_numbers(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TelescopeError, match="not UTF-8"):
        read_numbers(tmp_path / "x.toml")
