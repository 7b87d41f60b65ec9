#!/usr/bin/env python3
"""Includes point downwards only: check > api > plan > {backend, combine} > gpu > core > index > base.

Also: a backend never includes another backend, headers carry #pragma once, and files stay readable in length.
Exit 1 with one line per finding.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEVEL = {"base": 0, "index": 1, "core": 2, "gpu": 3, "combine": 4, "backend": 4, "plan": 5, "api": 6, "check": 7}
MAX_LINES = {".hpp": 320, ".cuh": 420, ".cpp": 480, ".cu": 720}


def findings():
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in MAX_LINES:
            continue
        name = path.relative_to(ROOT / "src")
        layer = name.parts[0]
        text = path.read_text()
        is_test = path.stem.endswith("_test")
        if not is_test and text.count("\n") > MAX_LINES[path.suffix]:
            yield f"{name}: {text.count(chr(10))} lines, at most {MAX_LINES[path.suffix]}"
        if path.suffix in (".hpp", ".cuh") and "#pragma once" not in text:
            yield f"{name}: no #pragma once"
        for target in re.findall(r'#include "([^"]+)"', text):
            parts = target.split("/")
            if parts[0] not in LEVEL or is_test:
                continue
            if LEVEL[parts[0]] > LEVEL[layer]:
                yield f"{name}: includes {target}, which is a layer above"
            if layer == parts[0] == "backend" and len(parts) > 2 and len(name.parts) > 2 and parts[1] != name.parts[1]:
                yield f"{name}: includes {target} of another backend"


def main():
    problems = list(findings())
    print("\n".join(problems) if problems else "includes: all point downwards")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
