# `make help` lists the targets. `make demo` and `make test` each work as the
# only command on a fresh clone of a machine with Go, a C compiler, Python 3
# with pip and venv, and a network.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
PYTHON ?= python3
CC ?= cc
RUNTIME := .runtime/tensorflow
VENV := .runtime/venv
REPORTS := out/test

# More arguments for every go test, for example GOTESTFLAGS=-count=1.
GOTESTFLAGS ?=
# Tests use the TensorFlow in this folder.
export STEADYFIT_TENSORFLOW ?= $(CURDIR)/$(RUNTIME)

export GO
GOTEST = scripts/gotest.sh

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ The two commands of the README

.PHONY: demo
demo: runtime build ## train the built-in digits model and evaluate the result
	env -u STEADYFIT_TENSORFLOW bin/steadyfit fit --model builtin:digits --data builtin:digits --validation builtin:digits --epochs 20 --seed 1 --out out/digits
	env -u STEADYFIT_TENSORFLOW bin/steadyfit evaluate --model out/digits --data builtin:digits

# Two targets run at the same time. Each uses half of the cores, so that tests of one
# target run while another target waits, or has a single long test left. Long targets come
# first.
HALF := $(shell echo $$((($$(getconf _NPROCESSORS_ONLN) + 1) / 2)))
.PHONY: test
test: runtime venv ## all tests: unit, race, oneDNN on and off, gcstress, other bindings, Python
	@rm -rf $(REPORTS)
	@rc=0; $(MAKE) -k --no-print-directory -j2 PROCESSES=$(HALF) GOTESTFLAGS='-p=$(HALF) $(GOTESTFLAGS)' \
		abi race test-unit test-onednn pytest gcstress test-bindings || rc=1; \
	$(PYTHON) scripts/test_summary.py $(REPORTS) || rc=1; exit $$rc

##@ Parts

.PHONY: runtime
runtime: ## fetch the TensorFlow libraries into .runtime (once, 270 MB download)
	@$(PYTHON) scripts/runtime.py

.PHONY: venv
venv: ## make the Python environment of the exporter and its tests (once)
	@PYTHON=$(PYTHON) scripts/venv.sh $(VENV)

.PHONY: build
build: ## build bin/steadyfit (needs no TensorFlow)
	$(GO) build -o bin/steadyfit ./cmd/steadyfit

.PHONY: abi
abi: runtime ## compare tfbind's C prototypes with TensorFlow's headers
	$(CC) -std=c11 -fsyntax-only -Wall -Werror -I$(RUNTIME)/include tfbind/abi/abi_check.c

# QEMU runs TensorFlow's libraries without a machine of that kind; the sysroot is that of Debian's
# cross compiler.
ARM64 := .runtime-arm64/tensorflow
ARM64_RUN := qemu-aarch64-static -L /usr/aarch64-linux-gnu
.PHONY: arm64
arm64: ## build for linux/arm64 and train there under QEMU (needs Debian's g++-aarch64-linux-gnu and qemu-user-static)
	$(PYTHON) scripts/runtime.py --machine aarch64 --dest $(ARM64)
	CGO_ENABLED=1 GOARCH=arm64 CC=aarch64-linux-gnu-gcc $(GO) build -o bin/arm64/steadyfit ./cmd/steadyfit
	STEADYFIT_TENSORFLOW=$(ARM64) $(ARM64_RUN) bin/arm64/steadyfit fit --model builtin:digits --data builtin:digits --epochs 2 --seed 1 --out out/digits-arm64
	STEADYFIT_TENSORFLOW=$(ARM64) $(ARM64_RUN) bin/arm64/steadyfit evaluate --model out/digits-arm64 --data builtin:digits

.PHONY: test-unit
test-unit: runtime ## Go tests, those with TensorFlow included
	STEADYFIT_TEST_PAGES=1 $(GOTEST) unit -timeout=50m $(GOTESTFLAGS) ./...

# TF_ENABLE_ONEDNN_OPTS, or without it the processor's flags, decide whether TensorFlow
# computes with oneDNN. race has the opposite setting of the other targets, so the tests run
# with oneDNN on and off. Results with it are not cached, since Go does not see the variables
# that C code reads.
ONEDNN_DEFAULT := $(if $(shell grep -m1 -oE 'avx512_vnni|avx512_bf16|avx_vnni|amx_tile' /proc/cpuinfo),1,0)
OTHER_ONEDNN := $(if $(filter 0 false False FALSE,$(or $(TF_ENABLE_ONEDNN_OPTS),$(ONEDNN_DEFAULT))),1,0)

# Tests name the lanes that skip them, and the lanes that run nothing else: see scripts/lane.sh.
SKIP = -skip '$(shell scripts/lane.sh skip $(1))'
ONLY = -run '$(shell scripts/lane.sh run $(1))'

# The race detector waits for a second when a program ends, and the tests start hundreds of
# programs. Left out are packages without goroutines, and those whose programs run alone in children.
WITHOUT_RACE := option|examples/(train|transfer)|internal/(bundle|cgroup|docs|dtype|explain|graphdef|lint|stats|lab/(compare|measure|program|programs|report|runner))
.PHONY: race
race: export GORACE ?= atexit_sleep_ms=20
race: runtime ## the unit tests with the race detector and the opposite setting of oneDNN
	TF_ENABLE_ONEDNN_OPTS=$(OTHER_ONEDNN) $(GOTEST) race -race -count=1 -timeout=30m $(call SKIP,race) \
		$(GOTESTFLAGS) $$($(GO) list ./... | grep -vE '/($(WITHOUT_RACE))$$')

.PHONY: test-onednn
test-onednn: runtime ## the tests that race skips, with the opposite setting of oneDNN
	TF_ENABLE_ONEDNN_OPTS=$(OTHER_ONEDNN) $(GOTEST) onednn -count=1 -timeout=20m $(call ONLY,onednn) $(GOTESTFLAGS) ./cmd/steadyfit ./fit ./session ./internal/autotune

.PHONY: gcstress
gcstress: runtime ## tests with a garbage collection inside each use of a native handle
	$(GOTEST) gcstress -tags gcstress -timeout=20m $(call SKIP,gcstress) $(GOTESTFLAGS) ./tfbind/... ./session/...

.PHONY: test-bindings
test-bindings: runtime ## tests with other bindings of TensorFlow in the same process
	source internal/lab/bench/galeone.env; $(GOTEST) tfgo -tags tfgo,galeone -timeout=20m $(GOTESTFLAGS) ./examples/augment ./internal/lab/programs/galeone
	source internal/lab/bench/galeone.env; MODULE=internal/lab/bindings $(GOTEST) bindings -timeout=20m $(GOTESTFLAGS) .

# The number of inputs for each fuzz target, followed by an x. A time is not used, since Go
# before 1.27 may fail a target when its time ends (go.dev/issue/75804).
FUZZTIME ?= 5000x

.PHONY: fuzz
fuzz: runtime ## search for inputs that fail, FUZZTIME for each target (test-unit runs the known ones)
	@scripts/fuzz.sh $(FUZZTIME) $(or $(PROCESSES),$$(getconf _NPROCESSORS_ONLN))

.PHONY: pytest
pytest: venv ## tests of the Python exporter
	@mkdir -p $(REPORTS)
	TF_CPP_MIN_LOG_LEVEL=2 $(VENV)/bin/python -m pytest -q -rs -n $(or $(PROCESSES),auto) --maxprocesses 4 --junit-xml=$(REPORTS)/pytest.xml scripts/tests

# Packages that take minutes are left to `make test`.
WITHOUT_CHECK := cmd/steadyfit|session|internal/(docs|explain|native|lint|lab/programs)|examples/.*
.PHONY: check
check: runtime ## lint and the tests of a few seconds: a look before each commit (3 minutes)
	@rc=0; $(MAKE) --no-print-directory lint || rc=1; \
	$(GOTEST) check $(call SKIP,check) $(GOTESTFLAGS) $$($(GO) list ./... | grep -vE '/($(WITHOUT_CHECK))$$') || rc=1; \
	$(GOTEST) check-command $(call ONLY,check) $(GOTESTFLAGS) ./cmd/steadyfit ./internal/docs || rc=1; exit $$rc

.PHONY: lint
lint: runtime ## golangci-lint, go vet with each build tag, the project's own rules, shell and Python
	@scripts/lint.sh

##@ Measurements

.PHONY: models
models: venv ## export the built-in models and the digits data again
	$(VENV)/bin/python scripts/builtin.py

# KerasHub, in its own folder beside the Python environment.
HUB := .runtime/keras_hub
$(HUB): scripts/requirements-hub.txt | venv
	rm -rf $@
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --require-hashes --only-binary=:all: --target $@ -r $<
	@touch $@

.PHONY: conformance
conformance: runtime venv $(HUB) ## train all cases in Keras fit and here, compare, and write the table of docs/reference/keras.md (half an hour)
	STEADYFIT_TEST_CONFORMANCE=$(CURDIR)/docs/reference/keras.md PYTHONPATH=$(CURDIR)/$(HUB) $(GO) test -count=1 -v -timeout 90m -run '^TestTrainsAsKerasFit$$' ./cmd/steadyfit

# MLflow, in a Python environment of its own, since it needs other versions of packages.
.PHONY: mlflow
mlflow: runtime ## record a training in MLflow's own server, and read it with its client
	@PYTHON=$(PYTHON) scripts/venv.sh .runtime/mlflow scripts/requirements-mlflow.txt
	STEADYFIT_TEST_MLFLOW=$(CURDIR)/.runtime/mlflow/bin/python $(GO) test -count=1 -v -timeout 10m -run '^TestMLflow' ./examples/mlflow

.PHONY: soak
soak: runtime ## long runs with all policies on, 200 kills of each kind of run, and an hour of fuzzing (four hours)
	STEADYFIT_TEST_SOAK=1 STEADYFIT_TEST_KILLS=200 $(GO) test -count=1 -timeout 120m -v $(call ONLY,soak) ./fit ./session ./serve ./train ./cmd/steadyfit
	STEADYFIT_TEST_TRAININGS=1000 $(GO) test -count=1 -timeout 180m -v -run '^TestUnderLoad$$' ./examples/service
	scripts/fuzz.sh 1000000x $$(getconf _NPROCESSORS_ONLN) guided

# Debian: apt-get install dataset-fashion-mnist
FASHION ?= /usr/share/datasets/fashion-mnist

.PHONY: fashion
fashion: venv build ## train a CNN on Fashion-MNIST, from the folder FASHION
	@test -d $(FASHION) || { echo "no Fashion-MNIST in $(FASHION): install the Debian package dataset-fashion-mnist, or set FASHION" >&2; exit 1; }
	$(VENV)/bin/python scripts/bench_models.py out/models --only fashion-cnn
	bin/steadyfit fit --model out/models/fashion-cnn --data $(FASHION) --validation $(FASHION) --epochs 5 --batch 64 --seed 1 --out out/fashion

.PHONY: augment
augment: runtime ## train the digits CNN on images that a graph of tfgo changes
	source internal/lab/bench/galeone.env; $(GO) run -tags tfgo ./examples/augment

.PHONY: bench-build
bench-build: runtime build ## build the C loop of the benchmark, and the programs of the matrix on galeone's binding
	@internal/lab/bench/build.sh

# For example: make bench TURNS=3 MODELS=image-224 WAYS='c fit galeone'. BENCHFLAGS has arguments of the benchmark.
BENCHFLAGS ?=

.PHONY: bench
bench: bench-build venv ## compare fit, a C loop, galeone's binding and Keras on the same models; figures in out/bench/train.txt (two hours)
	@internal/lab/bench/bench.sh train -test.benchtime=1x $(BENCHFLAGS)

.PHONY: bench-serve
bench-serve: bench-build ## predictions per second with package serve, a C program, galeone's binding and graft; of STEADYFIT_BENCH_MODEL, or digits (5 minutes)
	@internal/lab/bench/bench.sh serve $(BENCHFLAGS)

# The plan of a measurement in docs/results: matrix, options or precision.
PLAN ?= matrix

.PHONY: results
results: runtime build ## measure docs/results/PLAN.json.gz again, and with PLAN=matrix its report.html (5 hours)
	bin/steadyfit matrix --config docs/results/$(PLAN).yaml --out out/$(PLAN)
	bin/steadyfit report --thin docs/results/$(PLAN).json.gz out/$(PLAN)/matrix.json
	@if [ $(PLAN) = matrix ]; then cp out/matrix/report.html docs/results/; fi

# The versions of TensorFlow of docs/leaks. Each has a Python environment of its own; the last one has PyTorch, too.
LEAK_VERSIONS ?= 2.16.2 2.17.1 2.18.1 2.19.1 2.20.0 2.21.0

.PHONY: leak-book
leak-book: build ## run the programs of docs/leaks twice with each of LEAK_VERSIONS, and make the pages again (2 hours)
	@set -e; for v in $(LEAK_VERSIONS); do env=.runtime/leaks/$$v; out=out/leaks/$$v; \
	if [ ! -e $$env/made ]; then $(PYTHON) -m venv --clear $$env; \
	$$env/bin/python -m pip install -q tensorflow-cpu==$$v keras==3.15.1; \
	$$env/bin/python -m pip install -q --no-deps tf_keras==$${v%.*}.*; \
	if [ $$v = $(lastword $(LEAK_VERSIONS)) ]; then \
	$$env/bin/python -m pip install -q torch; fi; touch $$env/made; fi; \
	for run in 1 2; do echo "TensorFlow $$v, run $$run"; \
	$(PYTHON) scripts/leaks.py --python $$env/bin/python --steadyfit bin/steadyfit --flag=--until-sure --out $$out/$$run || true; done; \
	$(PYTHON) scripts/leak_book.py --python $$env/bin/python --add $$out/1 $$out/2; done

##@ GPUs and images

# The folder of a TensorFlow with GPU support, in place of the one of runtime-gpu.
GPU_TENSORFLOW ?=
USE_GPU = STEADYFIT_TENSORFLOW=$(or $(GPU_TENSORFLOW),$(CURDIR)/.runtime-gpu/tensorflow)
VENV_GPU := .runtime-venv-gpu

.PHONY: runtime-gpu
runtime-gpu: ## fetch TensorFlow with GPU support and CUDA's libraries into .runtime-gpu (once, 3.4 GB download)
	@$(PYTHON) scripts/runtime.py --gpu

.PHONY: venv-gpu
venv-gpu: ## make the Python environment with GPU support, for Keras in matrix-gpu (once)
	@PYTHON=$(PYTHON) scripts/venv.sh $(VENV_GPU) scripts/requirements-gpu.txt

.PHONY: test-gpu
test-gpu: $(if $(GPU_TENSORFLOW),,runtime-gpu) build ## run the tests that need a GPU, on a machine that has one
	$(USE_GPU) bin/steadyfit doctor --gpu
	$(USE_GPU) $(GOTEST) gpu -run '^TestOnGPU' -count=1 -timeout=20m $(GOTESTFLAGS) ./internal/gpu ./session ./cmd/steadyfit

# Growth, fraction, limits, allocators, precision; S3v and W3 have changing shapes.
MATRIX_GPU = --workloads W0,W3,S1d,S3,S3v \
	--remedies memory-growth,memory-fraction,gpu-limit,cuda-async,unified-memory,bfc-gc,host-limit,fp16-gpu,mixed-bf16,mixed-fp16

.PHONY: matrix-gpu
matrix-gpu: $(if $(GPU_TENSORFLOW),,runtime-gpu) venv-gpu build ## measure GPU options on Go and Keras; report in out/matrix-gpu
	$(USE_GPU) bin/steadyfit doctor --gpu
	$(USE_GPU) bin/steadyfit matrix --runtime go,keras --python $(VENV_GPU)/bin/python $(MATRIX_GPU) --out out/matrix-gpu

.PHONY: image
image: ## build the image for the CPU with docker or buildah, and test it (docs/how-to/containers.md)
	@scripts/image.sh build cpu
	@scripts/image.sh try cpu

.PHONY: image-gpu
image-gpu: ## build and test the image for GPUs
	@scripts/image.sh build gpu
	@scripts/image.sh try gpu

##@ Releases

.PHONY: dist
dist: ## build archives, wheels and SHA256SUMS for amd64 and arm64 in out/dist (5 minutes; fetches a C compiler of 101 MB once)
	@PYTHON=$(PYTHON) scripts/venv.sh .runtime/dist scripts/requirements-dist.txt
	$(PYTHON) scripts/dist.py --zig $(CURDIR)/.runtime/dist/bin/python

# The interpreters and the versions of TensorFlow in which the wheel is tried.
DIST_PYTHONS ?= python3.10 python3.11 python3.12 python3.13
DIST_TENSORFLOWS ?= 2.16.2 2.21.0
.PHONY: test-dist
test-dist: dist ## install the wheel into new environments with TensorFlow, and use it (15 minutes; fetches TensorFlow for each)
	$(PYTHON) scripts/try_wheel.py $(DIST_PYTHONS:%=--python %) $(DIST_TENSORFLOWS:%=--tensorflow %) out/dist/steadyfit-*-manylinux_2_28_$$(uname -m).whl

##@ Cleaning

.PHONY: clean
clean: ## remove built files (bin, out)
	rm -rf bin out

.PHONY: clean-all
clean-all: clean ## also remove fetched files (.runtime, .runtime-gpu, .runtime-venv-gpu)
	rm -rf .runtime .runtime-gpu $(VENV_GPU)
