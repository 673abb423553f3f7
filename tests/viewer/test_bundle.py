"""One script out of all modules of the page, for the report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from telescope.viewer.api import Api
from telescope.viewer.bundle import BundleError, Module, bundle, ordered, script
from telescope.viewer.payload import dumps
from telescope.viewer.report import write_report
from telescope.viewer.runs import Runs
from telescope.viewer.static_files import static_files
from tests.viewer.fake import data_of_report, fake_run

MODULES = [path for path in static_files() if path.endswith(".js")]


@pytest.mark.parametrize("path", MODULES)
def test_a_module_keeps_to_the_rules_of_the_bundle(path: str) -> None:
    text = static_files()[path].decode("utf-8")
    Module.of(path, text)
    assert not re.search(r"^export\s+(default|let|var)\b", text, re.MULTILINE)
    assert ordered(static_files(), path)[-1].path == path  # no cycle, no missing file


def test_every_module_is_part_of_the_page() -> None:
    used = {module.path for module in ordered(static_files(), "app.js")}
    assert used == set(MODULES)


def test_every_style_sheet_is_part_of_the_page() -> None:
    style = bundle().style
    for path, content in static_files().items():
        if path.endswith(".css"):
            assert content.strip() in style, path
    assert b"@import" not in style
    assert b"url(" not in style


def test_modules_come_after_those_that_they_import() -> None:
    files = {
        "app.js": b'import { b as c } from "./core/b.js";\nc();\n',
        "core/b.js": b'import {\n  a,\n} from "../a.js";\nexport const b = () => a;\n',
        "a.js": b"var x=1;export{x as a};\n",
    }
    assert script(files, "app.js").decode() == (
        "const $a = (() => {\nvar x=1;\nreturn { a: x };\n})();\n"
        "const $core_b = (() => {\nconst { a } = $a;\nconst b = () => a;\nreturn { b };\n})();\n"
        "const $app = (() => {\nconst { b: c } = $core_b;\nc();\nreturn {  };\n})();\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("export default function f() {}", "usual form: export default"),
        ("export let x = 1;", "usual form: export let"),
        ('import x from "./b.js";', "usual form: import x"),
        ('const x = import("./b.js");', "usual form: import("),
        ('import { a } from "./app.js";', "a cycle of imports: app.js → app.js"),
        ('import { a } from "./none.js";', r"app.js imports no file: none.js"),
        ('const x = "</script>";', "cannot hold '</script'"),
    ],
)
def test_what_the_bundle_cannot_hold_is_said(text: str, said: str) -> None:
    with pytest.raises(BundleError, match=re.escape(said)):
        script({"app.js": text.encode()}, "app.js")


# ---- in a browser ----


def test_a_report_opens_without_an_error_and_shows_every_level(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    out = write_report(fake_run(tmp_path / "run"), tmp_path / "r.html")
    for view in ("run", "samples", "compare"):
        page = open_page(f"{out.as_uri()}#view={view}")
        page.wait_for_timeout(200)
        assert page.inner_text("#app").strip()


def test_a_report_makes_the_formulas_that_the_server_sends(
    tmp_path: Path, open_page: Callable[..., Any], serve_run: Callable[[Path], str]
) -> None:
    run = fake_run(tmp_path / "run")
    html = write_report(run, tmp_path / "r.html").read_text("utf-8")
    api = Api(Runs(run))
    path = "api/runs/run/steps/40/samples"
    paths = [f"{path}/{i}/tokens/{t}" for i in (0, 3, 4) for t in range(7)]
    page = open_page(serve_run(run))
    made = page.evaluate(
        """async ([data, paths]) => {
            const { answerIn } = await import("/core/report.js");
            return paths.map((path) => answerIn(data, path).traces);
        }""",
        [data_of_report(html), paths],
    )
    for found, path in zip(made, paths, strict=True):
        assert found == json.loads(dumps(api.answer(f"/{path}")["traces"]))
