#!/usr/bin/env bash
# Proves that the objects built for one instruction set (src/backend/cpu/isa) define no symbol that another object could pick
# up but their own table: a weak or global copy of a shared inline function, compiled for AVX-512, would crash older machines.
#   tools/check_symbols.sh BUILD_DIR
set -euo pipefail
build=${1:?usage: tools/check_symbols.sh BUILD_DIR}
nm=${NM:-nm}
mapfile -t objects < <(find "$build" -path '*backend/cpu/isa/*.o' | sort)
[ ${#objects[@]} -gt 0 ] || { echo "check_symbols: no objects of src/backend/cpu/isa under $build"; exit 2; }
failed=0
for object in "${objects[@]}"; do
  # Everything defined that is not local. Sanitizer builds add their own marks, so only release builds are judged.
  defined=$("$nm" --demangle --defined-only --extern-only "$object" | sed 's/^[0-9a-f]* //')
  if [[ $(wc -l <<<"$defined") -ne 1 || ! $defined =~ ^[RD]\ flashrel::cpu::k[A-Za-z0-9]+Kernels$ ]]; then
    echo "check_symbols: $object defines more than its table:"
    sed 's/^/  /' <<<"$defined"
    failed=1
  fi
done
[ $failed -eq 0 ] && echo "check_symbols: ${#objects[@]} objects export their table and nothing else"
exit $failed
