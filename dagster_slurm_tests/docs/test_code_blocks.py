"""Every Python block of the README and the documentation runs, in the order in which a reader meets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "example_project").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    reader = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], path=str(ROOT), pattern="*.md")
    document: Document = reader.parse(page)
    for example in document.examples():
        example.evaluate()


def test_links_between_pages_lead_somewhere() -> None:
    missing = []
    for page in PAGES:
        for target in _links(page.read_text()):
            if not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert missing == []


def _links(text: str) -> list[str]:
    found = [piece.split(")")[0] for piece in text.split("](")[1:]]
    return [link.split("#")[0] for link in found if link and not link.startswith(("http", "#", "data:"))]
