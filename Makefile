# Every target creates what it needs; stamps keep repeats quick.
#
#   make build   create .venv/bin/hyperscale (release build)
#   make demo    run ten seconds of load against the built-in target
#   make test    run the Rust and Python tests
#   make lint    run the checks of CI
#   make fmt     format all sources
#   make bench   compare with wrk, k6, Locust and etcd; ONLY=startup runs one benchmark of startup,
#                memory, latency, throughput, where_time_goes, held_loop, load_models, rpc, membership,
#                ledger, ledger_scale, cluster, reports, clients;
#                ONLY=previous PREVIOUS=DIR compares with another checkout
#   make soak    run the long tests
#   make fuzz    fuzz every decoder that reads from the network (FUZZ_SECONDS=660)
#   make audit   check licences, sources and duplicate versions of crates, and known
#                vulnerabilities of Python packages
#   make wheel   build one wheel for Python 3.11 and newer into dist/
#   make wheel-check   install that wheel in new environments, on every Python found, and use it
#   make lock    update the lock files

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

# Debian packages that tests and benchmarks use; installed only if missing.
TEST_PACKAGES := iproute2 strace nginx-light python3-httpbin gunicorn prometheus
# Servers for clients and reporters; tests start their own, never the system's.
TEST_PACKAGES += postgresql redis-server mariadb-server mosquitto rabbitmq-server influxdb \
	prometheus-pushgateway graphite-carbon netdata-core default-jre-headless maven \
	openssh-server openssh-client chromium
BENCH_PACKAGES := wrk nginx-light etcd-server nghttp2-client

# Files whose change makes the native module or the console script outdated.
NATIVE := Cargo.toml Cargo.lock pyproject.toml \
	$(shell find native -name '*.rs' -o -name Cargo.toml -o -name build.rs)

# One target directory and one profile for build, clippy and tests, so that the C code of the
# dependencies is compiled once.
CARGO_FLAGS := --release --locked

export VIRTUAL_ENV := $(abspath $(VENV))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := build
.PHONY: build demo test test-deps bench-deps lint fmt bench soak fuzz audit wheel wheel-check lock clean

build: $(STAMPS)/native

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Hyperscale needs Python 3.11 or newer: make PYTHON=python3.11 build")'
	rm -rf $(VENV)
	@# Without python3-venv, Debian's venv lacks ensurepip; the system's pip can install pip instead.
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install -q pip; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: requirements/runtime.txt requirements/dev.txt requirements/clients.txt $(STAMPS)/venv
	$(BIN)/python -m pip install -q -r requirements/runtime.txt -r requirements/dev.txt -r requirements/clients.txt
	@touch $@

$(STAMPS)/native: $(NATIVE) $(STAMPS)/packages
	@command -v cargo >/dev/null || { echo "make build needs cargo: install Rust from your distribution or with rustup" >&2; exit 1; }
	$(BIN)/maturin develop --release --locked
	@touch $@

demo: build
	$(BIN)/python examples/demo.py

# Install missing Debian packages as root or with sudo, or print the command that does.
define apt_install
	@missing=""; \
	for package in $(1); do \
		dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
	done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ]; then as_root=""; \
	elif sudo -n true 2>/dev/null; then as_root="sudo -n"; \
	else echo "missing packages; install them first: sudo apt-get install$$missing" >&2; exit 1; fi; \
	$$as_root apt-get update -qq </dev/null && \
	DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -qq --no-install-recommends $$missing </dev/null
endef

# Servers that Debian does not have are installed once into the user's cache directory.
test-deps: $(STAMPS)/packages
	$(call apt_install,$(TEST_PACKAGES))
	$(BIN)/python -m tests.services.downloads

bench-deps: .venv-bench/stamp
	$(call apt_install,$(BENCH_PACKAGES))

# The tools we compare with have their own environment: their dependencies must not mix with ours.
.venv-bench/stamp: requirements/bench.txt $(STAMPS)/venv
	$(BIN)/python -m venv --without-pip --clear .venv-bench
	$(BIN)/python -m pip --python .venv-bench/bin/python install -q -r requirements/bench.txt
	@touch $@

test: test-deps build
	cargo test $(CARGO_FLAGS) --quiet --package hyperscale-core --package hyperscale-target
	@# Simulations compute while tests of nodes and clusters mostly wait, so they run in parallel.
	@$(BIN)/python -m pytest tests/cluster >$(STAMPS)/cluster.log 2>&1 & clusters=$$!; \
	{ $(BIN)/python -m pytest tests/simulation; simulated=$$?; \
	$(BIN)/python -m pytest tests/nodes && [ $$simulated -eq 0 ]; } >$(STAMPS)/nodes.log 2>&1 & nodes=$$!; \
	$(BIN)/python -m pytest $(foreach part,simulation nodes cluster,--ignore=tests/$(part)); rest=$$?; \
	wait $$nodes; noded=$$?; cat $(STAMPS)/nodes.log; \
	wait $$clusters; clustered=$$?; cat $(STAMPS)/cluster.log; \
	[ $$rest -eq 0 ] && [ $$noded -eq 0 ] && [ $$clustered -eq 0 ]

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict examples
	$(BIN)/lint-imports
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --quiet --workspace --all-targets -- -D warnings

fmt: build
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	cargo fmt --all

bench: bench-deps build
	$(BIN)/python -m benchmarks $(ONLY)

soak: test-deps build
	$(BIN)/python -m pytest -m "hypothesis and not soak" --hypothesis-profile=wide --timeout=900
	$(BIN)/python -m pytest -m soak --timeout=3600

# Where the coverage-guided fuzzer has no wheel, the fuzzer in tests/fuzz is used instead.
FUZZ_SECONDS ?= 660
fuzz: build .fuzz-packages/stamp
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m tests.fuzz $(ONLY)

.fuzz-packages/stamp: requirements/fuzz.txt $(STAMPS)/packages
	rm -rf .fuzz-packages && mkdir .fuzz-packages
	-$(BIN)/python -m pip install -q --no-deps --target .fuzz-packages -r requirements/fuzz.txt
	@touch $@

# Run before a release, not in CI. Both halves always run, and either can fail the target.
audit: $(STAMPS)/packages
	@command -v cargo-deny >/dev/null || { echo "make audit needs cargo-deny: cargo install cargo-deny --locked" >&2; exit 1; }
	@crates=0; cargo deny --locked check licenses sources bans || crates=$$?; \
	$(BIN)/python requirements/audit.py requirements/runtime.txt requirements/dev.txt requirements/clients.txt && exit $$crates

wheel: $(STAMPS)/packages
	rm -rf dist
	$(BIN)/maturin build --release --locked --out dist

wheel-check: wheel
	$(BIN)/python -m tests.wheel_check dist $(PYTHONS)

# Lock files pin hashes and contain neither hosts nor paths.
LOCK := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile -q --strip-extras --generate-hashes --allow-unsafe \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options
CLIENT_EXTRAS := browser cassandra ftp grpc kafka mongodb mqtt mysql postgres rabbitmq redis smtp ssh
lock: $(STAMPS)/packages
	$(LOCK) --upgrade --output-file requirements/runtime.txt pyproject.toml
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' \
		| $(LOCK) --upgrade --constraint requirements/runtime.txt --output-file requirements/dev.txt -
	$(LOCK) --upgrade --constraint requirements/runtime.txt --constraint requirements/dev.txt \
		$(foreach extra,$(CLIENT_EXTRAS),--extra $(extra)) --output-file requirements/clients.txt pyproject.toml
	$(LOCK) --upgrade --output-file requirements/bench.txt requirements/bench.in
	$(LOCK) --upgrade --output-file requirements/fuzz.txt requirements/fuzz.in
	cargo update --quiet

clean:
	rm -rf $(VENV) .venv-bench .fuzz-packages target dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find hyperscale tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f hyperscale/_native*.so
