#!/usr/bin/env bash
# The main job on real input, on the CPU: text from inkling-nano, then attention captured from it checked against float64.
# tools/demo.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
echo "== text: a small Inkling model, several prompts at once, every attention call through FlashRel"
"$build/examples/inkling-nano/inkling-nano" generate
echo
echo "== attention: q, k, v, rel captured from that model, every CPU instruction set against the float64 definition"
"$build/cli/flashrel" check --all-isas cases/real/*.safetensors
echo
echo "== what a call does: flashrel plan"
"$build/cli/flashrel" plan q=8 kv=700 hq=8 hkv=1 window=511 extent=512 bias=fused
