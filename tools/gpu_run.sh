#!/usr/bin/env bash
# Tests and benchmarks on a GPU machine that has no compiler or libraries of ours: build here, carry one folder, run there.
#
#   tools/gpu_run.sh build [ARCHITECTURES]       here: builds (default 90a) and fills build-gpu/kit, everything that is needed
#   KIT/gpu_run.sh run [-o OUT] [SECTION...]     there: runs the sections and writes OUT/summary.txt, logs and JSON beside it
#
# Sections: golden conformance tests sanitizers bench peers; all of them by default. Every step has a time limit
# (STEP_SECONDS, default 100) and the run goes on after a failed one; the exit status is 1 when any failed.
set -uo pipefail

build() {
  local root architectures=${1:-90a} kit
  root=$(cd "$(dirname "$0")/.." && pwd)
  kit=$root/build-gpu/kit
  set -e
  cmake -S "$root" -B "$root/build-gpu" -G Ninja -DFLASHREL_CUDA=ON "-DFLASHREL_CUDA_ARCHITECTURES=$architectures" \
    -DFLASHREL_BUILD_EXAMPLES=OFF ${CMAKE_ARGS:-}
  cmake --build "$root/build-gpu" -j "${JOBS:-2}" 2>&1 | tee "$root/build-gpu/build.log"
  rm -rf "$kit"
  mkdir -p "$kit/golden"
  cp "$root/build-gpu/cli/flashrel" "$root/build-gpu/libflashrel.so" "$root/tools/gpu_run.sh" "$kit"
  for name in gpu_tests revealing poison metamorphic offsets; do
    if [ -x "$root/build-gpu/tests/$name" ]; then cp "$root/build-gpu/tests/$name" "$kit"; fi
  done
  cp "$root/tools/bench_peers.py" "$root/tools/bench_decode.py" "$kit"
  cp "$root"/tests/golden/*.safetensors "$kit/golden"
  git -C "$root" rev-parse --short HEAD >"$kit/commit"
  find "$kit" -maxdepth 1 -type f -perm -u+x ! -name '*.sh' ! -name '*.py' -exec strip {} +
  du -sh "$kit"
}

# step NAME COMMAND...: one line in the summary, the whole output in OUT/NAME.log.
step() {
  local name=$1 begin=$SECONDS status
  shift
  timeout "${STEP_SECONDS:-100}" "$@" >"$out/$name.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  printf '%-28s %-6s %4d s  %s\n' "$name" "$([ $status -eq 0 ] && echo ok || echo "exit $status")" $((SECONDS - begin)) \
    "$(grep -v '^ *$' "$out/$name.log" | tail -1 | cut -c1-110)" | tee -a "$out/summary.txt"
}

backends() { "$kit/flashrel" info --json | python3 -c '
import json, sys
print(*(b["name"] for b in json.load(sys.stdin)["backends"] if b.get("memory") == "cuda"))' 2>/dev/null || echo mma; }

run() {
  kit=$(cd "$(dirname "$0")" && pwd)
  out=gpu-results
  failed=0
  if [ "${1:-}" = -o ]; then out=$2 && shift 2; fi
  mkdir -p "$out"
  local sections=${*:-golden conformance tests sanitizers bench peers}
  {
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader
    echo "commit $(cat "$kit/commit")"
  } | tee "$out/summary.txt"
  for section in $sections; do
    case $section in
      golden) for b in $(backends); do step "golden_$b" "$kit/flashrel" check "$kit"/golden/*.safetensors --backend "$b"; done ;;
      conformance)
        for b in $(backends); do step "conformance_$b" "$kit/flashrel" verify --cases conformance decode --backend "$b"; done
        step prefill_sm90 "$kit/flashrel" verify --cases prefill --backend sm90
        ;;
      tests)
        for name in gpu_tests revealing poison metamorphic offsets; do
          if [ -x "$kit/$name" ]; then step "$name" "$kit/$name"; fi
        done
        ;;
      sanitizers)
        for tool in memcheck racecheck synccheck initcheck; do
          for b in $(backends); do
            step "${tool}_$b" compute-sanitizer --tool "$tool" --error-exitcode 9 "$kit/flashrel" verify --quick --backend "$b"
          done
          step "${tool}_gpu_tests" env FLASHREL_QUICK_TESTS=1 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$kit/gpu_tests" '--gtest_filter=Sm90Decode*'
        done
        ;;
      bench)
        for b in $(backends); do
          step "bench_$b" "$kit/flashrel" bench --backend "$b" --json "$out/bench_$b.json" --note "commit $(cat "$kit/commit")"
        done
        ;;
      peers)
        step peers python3 "$kit/bench_peers.py" --lib "$kit/libflashrel.so"
        step decode python3 "$kit/bench_decode.py" --lib "$kit/libflashrel.so" --peers cudnn --json "$out/decode.json"
        ;;
      *) echo "section: got $section" >&2 && exit 2 ;;
    esac
  done
  exit $failed
}

case ${1:-} in
  build | run) "$@" ;;
  *) sed -n '2,9p' "$0" && exit 2 ;;
esac
