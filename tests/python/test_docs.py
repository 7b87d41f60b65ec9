"""The examples of the docs pages: Python blocks run as they stand, block after block in one namespace a page; C++ compiles."""

import inspect
import pathlib
import re
import shutil
import subprocess

import pytest
from oracle import Problem, assert_right

import flashrel

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


def test_ten_lines_of_python():
    arrays = Problem([1, 5], [40, 9]).arrays()
    q, k_cache, v_cache, rel, rel_proj = (arrays[name] for name in ("q", "k_cache", "v_cache", "rel", "rel_proj"))
    names = {"table": arrays["block_table"], "kv_lens": arrays["cache_seqlens"], "cu_q": arrays["cu_seqlens_q"]}
    names.update(q=q, k_cache=k_cache, v_cache=v_cache, rel=rel, rel_proj=rel_proj)
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(), re.S)
    exec(block, names)
    assert_right(names["out"], {**arrays, "softmax_scale": 1 / 128})


def cpp_blocks(page):
    return re.findall(r"```cpp\n(.*?)```", page.read_text(), re.S)


def test_the_cpp_program_is_the_one_that_the_test_install_runs():
    assert cpp_blocks(DOCS / "cpp.md")[0] == (DOCS.parent / "tests/install/main.cpp").read_text()


def test_cpp_examples_compile(tmp_path):
    """docs/cpp.md as one file; README's ten lines as the body of a function over the names that it uses."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    program, *functions = cpp_blocks(DOCS / "cpp.md")
    (ten_lines,) = cpp_blocks(DOCS.parent / "README.md")
    include, body = ten_lines.split("\n", 1)
    pointers = "q", "k", "v", "rel", "proj", "out", "table", "kv_lens", "cu_q"
    names = ", ".join(
        [f"void* {name}" for name in pointers] + [f"std::int64_t {n}" for n in ("n_tokens", "n_pages", "n_seqs", "max_pages")]
    )
    source = tmp_path / "examples.cpp"
    source.write_text(
        "#include <iostream>\n#include <span>\n#include <thread>\n" + program + "\n".join(functions)
        + f"{include}\nvoid ten_lines({names}) {{\n{body}}}\n"
    )  # fmt: skip
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", DOCS.parent / "include", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_reference_names_everything():
    """docs/reference.md has every public name, and every argument of rel_attention, and nothing that is gone."""
    text = (DOCS / "reference.md").read_text()
    named = set(re.findall(r"`([A-Za-z_.]+)[`(]", text))
    assert set(flashrel.__all__) <= named
    arguments = re.search(r"## rel_attention\n(.*?)\n## ", text, re.S)[1]
    rows = re.findall(r"^\| ([`a-z_, ]+) \|", arguments, re.M)
    documented = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert sorted(documented) == sorted(inspect.signature(flashrel.rel_attention).parameters)
