"""Hostile programs in the sandbox: none gets out, none can claim a score."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from telescope.errors import TelescopeError
from telescope.rewards import sandbox
from telescope.rewards.programs import Python, program_of
from telescope.rewards.sandbox import Limits, run_program
from tests.rewards import hostile

PLENTY = Limits(seconds=10.0, files_mb=8, processes=4)
SHORT = Limits(seconds=0.3, output_kb=64)
CONTAINED = hostile.NETWORK | hostile.FILES | hostile.PROCESSES | hostile.RESOURCES


def can_isolate() -> bool:
    try:
        return run_program("print(1)", [{"input": ""}]) == ["1\n"]
    except TelescopeError:
        return False


isolated = pytest.mark.skipif(not can_isolate(), reason="this kernel offers no user namespaces")


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """What the programs try to reach."""
    folder = tmp_path_factory.mktemp("outside")
    folder.chmod(0o777)
    secret = folder / "secret.txt"
    secret.write_text("secret")
    os.environ["TELESCOPE_SECRET"] = "secret"
    abstract = f"telescope-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0" + abstract)
        local.listen()
        server.settimeout(0)
        yield {
            "secret": str(secret),
            "folder": str(folder),
            "port": server.getsockname()[1],
            "abstract": abstract,
            "pid": os.getpid(),
            "server": server,
        }
    del os.environ["TELESCOPE_SECRET"]


@pytest.fixture(scope="module")
def outputs(outside: dict[str, object]) -> dict[str, str | None]:
    """What every program printed; several run at the same time."""
    jobs = {name: (source.format(**outside), PLENTY) for name, source in CONTAINED.items()}
    jobs |= {name: (source, SHORT) for name, source in hostile.TOO_LONG.items()}
    jobs |= {name: (source, PLENTY) for name, source in hostile.LEFT_BEHIND.items()}

    def run(job: tuple[str, Limits]) -> str | None:
        return run_program(job[0], [{"input": ""}], job[1])[0]

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(jobs, pool.map(run, jobs.values()), strict=True))


def test_there_are_at_least_forty_hostile_programs() -> None:
    others = (hostile.TOO_LONG, hostile.LEFT_BEHIND, hostile.FORGERIES)
    assert len(CONTAINED) + sum(len(some) for some in others) >= 40


@isolated
@pytest.mark.parametrize("name", CONTAINED)
def test_a_hostile_program_does_not_get_out(name: str, outputs: dict[str, str | None]) -> None:
    assert outputs[name] is not None, "it should end by itself"
    assert "ESCAPED" not in outputs[name]


@isolated
@pytest.mark.parametrize("name", hostile.TOO_LONG)
def test_a_program_without_end_is_ended(name: str, outputs: dict[str, str | None]) -> None:
    assert outputs[name] is None


@isolated
@pytest.mark.parametrize("name", hostile.LEFT_BEHIND)
def test_what_a_program_leaves_behind_does_not_hold_its_result(
    name: str, outputs: dict[str, str | None]
) -> None:
    assert outputs[name] == "done\n"


@isolated
def test_nothing_of_all_that_is_left_outside(
    outputs: dict[str, str | None], outside: dict[str, object]
) -> None:
    assert [path.name for path in Path(str(outside["folder"])).iterdir()] == ["secret.txt"]
    with pytest.raises(BlockingIOError):  # nobody has connected
        outside["server"].accept()  # type: ignore[attr-defined]
    own = sandbox._JAIL.encode()
    running = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and own in (process / "cmdline").read_bytes():
                running.append(process.name)
        except OSError:
            continue
    assert running == []


@isolated
@pytest.mark.parametrize("name", hostile.FORGERIES)
def test_a_score_cannot_be_forged(name: str) -> None:
    """The expected value never enters the sandbox."""
    scores, passed = Python(seconds=5.0)(
        [hostile.FORGERIES[name]],
        [["assert f(40) == 'kumquat'", {"input": "", "output": "kumquat"}]],
    )
    assert scores == [0.0]
    assert passed == {"tests_passed": [0.0]}


@isolated
def test_right_programs_score_and_wrong_ones_do_not() -> None:
    right = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
    tests = ["assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]", "assert not add(1, -1)"]
    scores, metrics = Python(workers=2)(
        [right, right.replace("+", "*"), "no code at all", right], [tests, tests, tests, None]
    )
    assert scores == [1.0, 0.0, 0.0, None]
    assert metrics["tests_passed"] == [1.0, 0.0, 0.0, None]


@isolated
def test_programs_that_read_and_print_are_compared_line_by_line() -> None:
    program = "n = int(input())\nfor i in range(n):\n    print(i, end=' \\n')"
    tests = '[{"input": "2", "output": "0\\n1\\n"}, {"input": "1", "output": "7"}]'
    assert Python(partial=True)([program], [tests])[0] == [0.5]


@isolated
def test_values_are_compared_with_their_types() -> None:
    program = "def f(x): return {'a': (1, 2), 'b': {3}}"
    same = "assert f(0) == {'b': {3}, 'a': (1, 2)}"
    other = "assert f(0) == {'a': [1, 2], 'b': {3}}"
    assert Python(partial=True)([program], [[same, other]])[0] == [0.5]


def test_a_test_that_would_need_the_answer_inside_is_refused() -> None:
    with pytest.raises(TelescopeError, match="cannot be checked outside of the program"):
        Python(allow_without_isolation=True)(["x"], [["assert abs(f(2) - 4) < 1e-6"]])


def test_the_last_block_is_the_program() -> None:
    assert program_of("```python\na\n```\nthen\n```\nb\n```") == "b\n"
    assert program_of("print(1)") == "print(1)"


@pytest.fixture
def without_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sandbox as it is where the kernel refuses new namespaces."""
    source = Path(sandbox._JAIL).read_text("utf-8")
    broken = source.replace(
        "def isolate(job", "def isolate(job):\n    raise OSError(1, 'no')\n\n\ndef unused(job"
    )
    assert broken != source
    (tmp_path / "jail.py").write_text(broken, "utf-8")
    monkeypatch.setattr(sandbox, "_JAIL", str(tmp_path / "jail.py"))


def test_without_isolation_nothing_is_run(without_namespaces: None, tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match=r"cannot be isolated from the network here \(no\)"):
        run_program(f"open({str(tmp_path / 'ran')!r}, 'w')", [{"input": ""}])
    assert not (tmp_path / "ran").exists()


def test_without_isolation_programs_run_if_the_user_says_so(without_namespaces: None) -> None:
    limits = Limits(seconds=0.3, allow_without_isolation=True)
    assert run_program("print(1)", [{"input": ""}], Limits(allow_without_isolation=True)) == ["1\n"]
    assert run_program("while True: pass", [{"input": ""}], limits) == [None]


def test_the_attacks_work_where_nothing_isolates(
    without_namespaces: None, outside: dict[str, object]
) -> None:
    """Else the programs above would prove nothing."""
    limits = Limits(allow_without_isolation=True)
    for name in ("connects_to_a_port", "reads_a_secret_by_path", "kills_its_parent"):
        source = CONTAINED[name].format(**outside)
        output = run_program(source, [{"input": ""}], limits)[0]
        assert output is None or "ESCAPED" in output, name


@isolated
@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/python3").exists(), reason="not root")
def test_another_user_than_root_gets_the_same_isolation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import os\nprint(os.getuid(), os.path.exists('/etc/passwd'), os.listdir('/box'))"
    program = tmp_path / "as_nobody.py"
    program.write_text(
        "import os, sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "os.execv('/usr/bin/python3', ['python3', *sys.argv[1:]])\n"
    )
    jail = Path("/tmp") / f"telescope-jail-{os.getpid()}.py"
    jail.write_text(Path(sandbox._JAIL).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(sandbox, "_JAIL", str(jail))
    monkeypatch.setattr(sandbox, "_INTERPRETER", [sys.executable, str(program)])
    made = sandbox.tempfile.mkdtemp

    def open_to_all(**kwargs: str) -> str:
        folder = made(**kwargs, dir="/tmp")
        os.chown(folder, 65534, 65534)
        return folder

    monkeypatch.setattr(sandbox.tempfile, "mkdtemp", open_to_all)
    try:
        assert run_program(code, [{"input": ""}]) == ["1000 False []\n"]
    finally:
        jail.unlink()
