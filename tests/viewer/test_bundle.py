"""One script out of all modules of the page, for the report."""

from __future__ import annotations

import re

import pytest

from telescope.viewer.bundle import BundleError, Module, bundle, ordered, script
from telescope.viewer.static_files import static_files

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
