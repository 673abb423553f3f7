"""The code behind one token's numbers: our lines, with file and line, beside verl's names."""

from __future__ import annotations

from collections.abc import Sequence

from telescope.explain.code import Code, code_of
from telescope.explain.terminal import Screen

_IDEAS = ("response_mask", "shift", "aggregate")
"""What no term of a token shows, and what is asked about most."""


class SourceView(Screen):
    """Each term of a token, then the functions that compute it."""

    def parts(self) -> list[list[str]]:
        parts = [self.header(), self.says(self._title(self.token), "bold")]
        shown: set[str] = set()
        for trace in self.traces[self.token]:
            codes = code_of(trace.name, self.sample.settings)
            parts.append(self.term(trace) + self._code(codes, shown))
        for idea in _IDEAS:
            codes = code_of(idea, self.sample.settings)
            parts.append([*self.says(idea, "bold"), *self._code(codes, shown)])
        return parts

    def _code(self, codes: Sequence[Code], shown: set[str]) -> list[str]:
        """Where it is computed. Lines that were shown before are only named."""
        lines: list[str] = []
        for code in codes:
            lines += self.says(f"  {self.ui('ours')}  {code.place}", indent="        ")
            if code.place not in shown:
                drawn = [f"    │ {line}" for line in code.lines]
                lines += self.draws([self.paint(line, "dim") for line in drawn])
                shown.add(code.place)
        names = dict.fromkeys(str(verl) for code in codes for verl in code.verl)
        for name in names or [self.ui("not_in_verl")] if codes else []:
            lines += self.says(f"  verl  {name}", indent="        ")
        for said in dict.fromkeys(code.note(self.lang) for code in codes):
            if said:
                lines += self.says(f"  {said}", "dim", "  ")
        return lines
