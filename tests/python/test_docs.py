"""The Python examples of the docs pages about Python run as they stand, block after block in one namespace a page."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / name for name in ("install.md", "python.md", "transformers.md", "vllm.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page, capsys):
    """A block that imports a package which is not here ends its page; the blocks before it have run."""
    namespace = {}
    ran = 0
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        for package in re.findall(r"^import (torch|transformers|jax|cupy)\b", block, re.M):
            pytest.importorskip(package, reason=f"{page.name}: {ran} blocks ran, the next needs {package}")
        exec(compile(block, f"{page.name}, block {ran + 1}", "exec"), namespace)
        ran += 1
    assert ran


def test_the_sentences_shown_are_the_librarys(capsys):
    """docs/python.md shows what its error examples print."""
    page = DOCS / "python.md"
    namespace = {}
    shown = re.findall(r"print\(error\)\s+# (.*)", page.read_text())
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    for block in blocks[:5]:
        exec(block, namespace)
    printed = capsys.readouterr().out
    assert len(shown) == 2
    for sentence in shown:
        assert sentence in printed
