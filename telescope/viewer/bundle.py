"""The page's modules as one script, and its style sheets as one.

A report is one file, and a file on disk cannot import another; the live page opens faster this way.
Each module becomes a function that is called at once, after those that it imports:

    const $core_state = (() => { …; return { state, go }; })();

For that the modules keep to a few rules: named exports only, of functions, constants and classes;
imports at the start of a line; no cycles.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from telescope.viewer.static_files import static_files

_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"([^"\n]+)";?\n?', re.MULTILINE)
_DECLARED = re.compile(
    r"^export (?=(?:async )?(?:function\*?|const|class) ([A-Za-z_$][\w$]*))", re.MULTILINE
)
_LISTED = re.compile(r"(?:^|(?<=[;}]))export\s*\{([^}]*)\};?\n?", re.MULTILINE)
_LEFT = re.compile(r"^(?:import\b|export\b).*|\bimport\(.*|;export\b.*", re.MULTILINE)
_LINK = re.compile(rb'<link rel="stylesheet" href="([^"]+)">\n?')
_SCRIPT = re.compile(rb'<script type="module" src="([^"]+)"></script>')


class BundleError(Exception):
    """A module breaks the rules above."""


@dataclass(frozen=True)
class Module:
    """A file of the page, with its imports and exports taken out of the text."""

    path: str
    imports: tuple[tuple[str, str], ...]
    """(path of the module, names as they stand in a pattern: `a, b: c`)."""
    exports: tuple[str, ...]
    """Names as they stand in an object: `a, b: c`."""
    body: str

    @classmethod
    def of(cls, path: str, text: str) -> Module:
        folder = posixpath.dirname(path)
        imports = []
        for found in _IMPORT.finditer(text):
            target = posixpath.normpath(posixpath.join(folder, found[2]))
            imports.append((target, ", ".join(_renamed(found[1], outside_first=True))))
        exports = list(_DECLARED.findall(text))
        for names in _LISTED.findall(text):
            exports += _renamed(names, outside_first=False)
        body = _DECLARED.sub("", _LISTED.sub("", _IMPORT.sub("", text)))
        left = _LEFT.search(body)
        if left:
            raise BundleError(f"{path}: not an import or export of the usual form: {left[0][:80]}")
        return cls(path, tuple(imports), tuple(exports), body)

    def text(self) -> str:
        """The module as a function that is called at once."""
        lines = [f"const {_name(self.path)} = (() => {{"]
        lines += [f"const {{ {names} }} = {_name(path)};" for path, names in self.imports]
        lines.append(self.body.strip())
        lines.append(f"return {{ {', '.join(self.exports)} }};")
        lines.append("})();\n")
        return "\n".join(lines)


def _name(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))


def _renamed(names: str, *, outside_first: bool) -> list[str]:
    """`a, b as c` for a pattern or an object, which write the outer name first."""
    made = []
    for name in filter(None, map(str.strip, names.split(","))):
        first, _, second = name.partition(" as ")
        if not second:
            made.append(first)
            continue
        made.append(f"{first}: {second}" if outside_first else f"{second}: {first}")
    return made


def ordered(files: Mapping[str, bytes], entry: str) -> list[Module]:
    """The modules that `entry` needs, each after those that it imports."""
    done: dict[str, Module] = {}
    open_paths: list[str] = []

    def visit(path: str) -> None:
        if path in done:
            return
        if path in open_paths:
            raise BundleError(f"a cycle of imports: {' → '.join([*open_paths, path])}")
        if path not in files:
            raise BundleError(
                f"{open_paths[-1] if open_paths else 'the page'} imports no file: {path}"
            )
        open_paths.append(path)
        module = Module.of(path, files[path].decode("utf-8"))
        for target, _ in module.imports:
            visit(target)
        open_paths.pop()
        done[path] = module

    visit(entry)
    return list(done.values())


def script(files: Mapping[str, bytes], entry: str) -> bytes:
    """All modules as one script."""
    text = "".join(module.text() for module in ordered(files, entry))
    inlined = re.search(r"</script|<!--", text, re.IGNORECASE)
    if inlined:
        raise BundleError(f"a script element cannot hold {inlined[0]!r}")
    return text.encode("utf-8")


def _styles(files: Mapping[str, bytes], html: bytes) -> Iterator[bytes]:
    for path in _LINK.findall(html):
        yield files[path.decode()].strip() + b"\n"


@dataclass(frozen=True)
class Bundle:
    """The page in three parts. `html` has the marks STYLE, DATA and SCRIPT in it."""

    html: bytes
    style: bytes
    script: bytes


POLICY, STYLE, DATA, SCRIPT = b"<!--policy-->", b"<!--style-->", b"<!--data-->", b"<!--script-->"


def bundle() -> Bundle:
    """The page of index.html: its links become one style, its module one script."""
    files = static_files()
    html = files["index.html"]
    entry = _SCRIPT.search(html)
    if entry is None:
        raise BundleError("index.html has no module")
    style = b"".join(_styles(files, html))
    html = _SCRIPT.sub(SCRIPT, _LINK.sub(b"", html))
    html = html.replace(b"</head>", STYLE + b"\n</head>")
    return Bundle(html, style, script(files, entry[1].decode()))


@functools.cache
def bundled_files() -> dict[str, bytes]:
    """The page as three files, for a server."""
    page = bundle()
    html = page.html.replace(STYLE, b'<link rel="stylesheet" href="page.css">')
    html = html.replace(SCRIPT, b'<script type="module" src="page.js"></script>')
    return {"index.html": html, "page.css": page.style, "page.js": page.script}
