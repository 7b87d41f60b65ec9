#!/usr/bin/env bash
# The Python package as a user meets it: builds the wheel (no GPU backends), installs it in a clean virtual environment
# beside nothing but NumPy, then adds the test packages and runs tests/python. Needs g++, python3 and pip's registry.
#   tools/test_python.sh [PYTEST_ARGUMENTS...]
# PYTHON names the interpreter that builds (python3), VENV the environment to make (build-python/venv). The same wheel is then
# tested under every interpreter in PYTHONS; by default those of pyenv, where it is, that the package is for. TORCH=1 brings
# torch and transformers into the first environment, for the tests that need them.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-build-python/venv}
mkdir -p build-python
rm -rf "$venv" build-python/dist
"$python" -m venv "$venv"
venv=$(realpath "$venv")
"$venv/bin/pip" install -q --disable-pip-version-check build

launcher=()
if command -v ccache > /dev/null; then
  launcher=(-Ccmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
"$venv/bin/python" -m build --wheel -o build-python/dist -Ccmake.define.FLASHREL_CUDA=OFF "${launcher[@]}" . \
  > build-python/wheel.log 2>&1 || { tail -n 60 build-python/wheel.log; exit 1; }
wheel=$(echo build-python/dist/flashrel-*.whl)
case "$wheel" in
  *-py3-none-*) echo "wheel: $(basename "$wheel"), $(stat -c %s "$wheel") bytes" ;;
  *) echo "wheel: got $wheel, expected a name with -py3-none-"; exit 1 ;;
esac
wheel=$(realpath "$wheel")
cd build-python  # away from the sources: only the installed package can be imported

test_under() {  # test_under PYTHON VENV PYTEST_ARGUMENTS...
  local python=$1 venv=$2
  shift 2
  [ -d "$venv" ] || "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check "$wheel"
  "$venv/bin/python" -c "import platform, flashrel
print('Python', platform.python_version(), 'imports flashrel', flashrel.__version__, 'with NumPy alone')"
  "$venv/bin/pip" install -q --disable-pip-version-check pytest hypothesis ml_dtypes "apache-tvm-ffi>=0.1.12,<0.2"
  if [ -n "$more" ]; then  # a network that does not manage it leaves tests skipped, and says so
    timeout 900 "$venv/bin/pip" install -q --disable-pip-version-check $more || echo "not installed: $more"
  fi
  "$venv/bin/python" -m pytest -q ../tests/python "$@"
}

version_of() { "$1" -c 'import sys; print(*sys.version_info[:2])'; }

more=jax  # its arrays come through DLPack; once is enough
[ "${TORCH:-0}" = 1 ] && more+=" torch==2.11.* transformers==5.17.* safetensors"
test_under "$python" "$venv" "$@"
more=
for other in ${PYTHONS-"$HOME"/.pyenv/versions/3.1[0-9].*/bin/python}; do
  if [ -x "$other" ] && [ "$(version_of "$other")" != "$(version_of "$python")" ]; then
    rm -rf other-venv
    test_under "$other" other-venv "$@"
  fi
done
