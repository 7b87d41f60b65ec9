#!/usr/bin/env python3
"""Fails when ptxas reports a spill, a stack frame that is not meant or serialised matrix instructions in any GPU kernel.

    tools/check_gpu_code.py build              # compiles every .cu of the build again (instant with ccache) and reads ptxas
    tools/check_gpu_code.py --log build.log    # reads the output of a build made with -Xptxas=-v
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
# Arrays that kernels keep in local memory on purpose: part of the kernel's name, bytes at most.
FRAMES = [("sm907prefill16attention_kernel", 256)]  # Consumer::multiply_qk_again
# C7510, C7511, C7520: "Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..."
# C7519 (an arrive that ptxas adds by itself) is information: the products stay asynchronous.
SERIAL = re.compile(r"C7510|C7520|Potential Performance Loss|serialized")


def ptxas_output(build_dir):
    """The compiler's messages for every .cu file of the build."""
    with open(os.path.join(build_dir, "compile_commands.json")) as file:
        commands = [c for c in json.load(file) if c["file"].endswith(".cu")]
    if not commands:
        sys.exit(f"{build_dir}: no .cu file in compile_commands.json (a build without CUDA?)")
    for command in commands:
        words = shlex.split(command["command"])
        with tempfile.NamedTemporaryFile(suffix=".o") as scratch:
            words[words.index("-o") + 1] = scratch.name
            run = subprocess.run(words, cwd=command["directory"], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{command['file']}: does not compile\n{run.stderr}")
        yield from (run.stdout + run.stderr).splitlines()


def check(lines):
    kernels, faults, entry = 0, [], ("?", "?")
    for line in lines:
        if match := ENTRY.search(line):
            entry = match.groups()
            kernels += 1
        if match := FRAME.search(line):
            frame, *spills = map(int, match.groups())
            meant = max((size for name, size in FRAMES if name in entry[0]), default=0)
            if frame > meant or any(spills):
                faults.append((*entry, match.group(0)))
        if SERIAL.search(line):
            faults.append((*entry, line.strip()))
    return kernels, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", help="build folder with compile_commands.json")
    parser.add_argument("--log", help="output of a build instead")
    options = parser.parse_args()
    if (options.build is None) == (options.log is None):
        parser.error("give a build folder or --log")
    lines = open(options.log) if options.log else ptxas_output(options.build)
    kernels, faults = check(lines)
    for kernel, architecture, fault in faults:
        print(f"{architecture} {kernel}: {fault}")
    print(f"{kernels - len(faults)} passed, {len(faults)} failed")
    return 1 if faults or kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
