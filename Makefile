# Two commands do everything on a fresh Debian 12 or Ubuntu 24.04:
#   make demo    install what is missing, build, generate text on the CPU with inkling-nano, show checked attention figures
#   make test    the same, then every test
# With nvcc on the machine the GPU backends are built too; without it everything else works. JOBS=n sets the parallel builds.

JOBS ?= $(shell nproc)
BUILD ?= build
CTEST_ARGS ?=
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
BUILD_PACKAGES = g++ cmake ninja-build python3 libcli11-dev libfmt-dev nlohmann-json3-dev libgtest-dev librapidcheck-dev

.PHONY: demo test build packages clean

packages:
	@tools/install_packages.sh $(BUILD_PACKAGES)

build: packages
	@echo "== build: Release into $(BUILD)/"
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release > $(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@grep "FlashRel GPU backends" $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS) 2>&1 | tee $(BUILD)/build.log | grep --line-buffered -E '^\[|error|FAILED|warning|ninja:'

demo: build
	@tools/demo.sh $(BUILD)

test: build
	@echo "== tests"
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) $(CTEST_ARGS)

clean:
	rm -rf $(BUILD) $(BUILD).log
