# The door for people. CMake and Ninja do the work (CMakeLists.txt, CMakePresets.json); this file
# knows what to type. `make help` lists the targets.

PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SECONDS ?= 300
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
RELEASE := build/release
export FUZZ_SECONDS JOBS

.DEFAULT_GOAL := all
.PHONY: all help run test check-fast accurate bench asan ubsan tsan fuzz lint format install cov clean \
        gpu-test gpu-sanitize gpu-bench cuda-archs grammar-campaign serve-load setup-build setup-test configure reconfigure

all: configure ## the program, left at ./deepinfer
	@ninja -C $(RELEASE) -j $(JOBS) deepinfer
	@ln -sfn $(RELEASE)/deepinfer deepinfer

run: all ## a story from the demo model, streamed
	./deepinfer run models/demo "Tell me a story about a fox." --no-thinking --temperature 0

test: setup-test ## everything CI runs: both compilers, sanitizers, README, lint
	@tools/check

check-fast: setup-test reconfigure ## the quick unit tests of the release build
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	@ctest --test-dir $(RELEASE) -L fast -j $(JOBS) --output-on-failure

asan: setup-test ## quick tests under AddressSanitizer, LeakSanitizer and UBSan (clang)
	@tools/check asan

ubsan: setup-test ## quick tests under UndefinedBehaviorSanitizer (gcc)
	@tools/check ubsan

tsan: setup-test ## the tests of threads under ThreadSanitizer
	@tools/check tsan

fuzz: setup-test ## every fuzzer for FUZZ_SECONDS (60) each
	@tools/fuzz

lint: setup-test ## format, include directions, headers, clang-tidy, sizes
	@tools/check lint

format: setup-test ## clang-format over the tree
	@tools/lint/format --fix

bench: setup-test reconfigure ## operations against their twins, and their speed
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	@tools/bench $(RELEASE)

gpu-test: setup-test reconfigure ## what the CUDA backend must pass, on a machine with a GPU
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	@tools/gpu test $(RELEASE) || [ $$? -eq 77 ]

gpu-sanitize: setup-test ## memcheck and racecheck over operations and tiny models, on a machine with a GPU
	@cmake -S . -B build/gpu-sanitize -G Ninja -DCMAKE_BUILD_TYPE=Release -DDI_CUDA=on \
		-DDI_CUDA_CHECKED=ON -DDI_WERROR=ON >/dev/null
	@ninja -C build/gpu-sanitize -j $(JOBS) --quiet
	@tools/gpu sanitize build/gpu-sanitize || [ $$? -eq 77 ]

gpu-bench: setup-test reconfigure ## the GPU's ceilings, operations, and full-width layers (GPU_LAYERS)
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	@tools/gpu bench $(RELEASE) || [ $$? -eq 77 ]

cuda-archs: setup-test ## compile the CUDA backend for the architectures beside the default one (100a)
	@cmake -S . -B build/cuda-archs -G Ninja -DCMAKE_BUILD_TYPE=Release -DDI_CUDA=on \
		-DDI_CUDA_ARCHS=100a -DDI_WERROR=ON >/dev/null
	@ninja -C build/cuda-archs -j $(JOBS) --quiet cuda_objects

accurate: setup-test reconfigure ## long campaigns: the 475 GiB geometry, schedules, 10,000 requests
	@ninja -C $(RELEASE) -j $(JOBS) --quiet
	DI_ACCURATE=1 $(RELEASE)/tests/test_sparse
	DI_CORE_SCHEDULES=200 $(RELEASE)/tests/test_core_property
	DI_CAMPAIGN_REQUESTS=10000 $(RELEASE)/tests/test_requests_campaign
	DI_CAMPAIGN_REQUESTS=10000 $(RELEASE)/tests/test_batch_campaign

grammar-campaign: setup-test reconfigure ## 100,000 random answers under random schemas, judged by ajv (npm)
	@ninja -C $(RELEASE) -j $(JOBS) --quiet test_grammar_campaign
	DI_GRAMMAR_ANSWERS=100000 tests/grammar/grammar_campaign.sh $(RELEASE)/tests/test_grammar_campaign

serve-load: setup-test reconfigure ## load on the server for SECONDS (300) and more, judged; wants a quiet machine
	@ninja -C $(RELEASE) -j $(JOBS) --quiet deepinfer server_load
	@tools/serve_load $(RELEASE) --seconds $(SECONDS)

install: configure ## into PREFIX (/usr/local), under DESTDIR if set
	@ninja -C $(RELEASE) -j $(JOBS) deepinfer deepinfer_core
	@cmake --install $(RELEASE) --prefix "$(PREFIX)"

cov: setup-test ## line coverage of the unit tests, per file
	@tools/coverage

clean: ## removes what was built
	rm -rf build deepinfer

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup-build:
	@tools/setup build

setup-test:
	@tools/setup test

configure: setup-build
	@[ -f $(RELEASE)/build.ninja ] || cmake --preset release

# Always: the tests' libraries may have come since the program was built without them.
reconfigure: setup-build
	@cmake --preset release >/dev/null
