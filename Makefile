# `make train` and `make test` do everything on a machine with Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup train test slow-test faults data-faults sweep-faults cluster-test lint bench bench-full bench-sweep bench-sweep-driver bench-deterministic bench-checkpoints bench-augmentation bench-check bench-smoke docs pictures dist clean

setup: $(VENV)/.ready

# Compiled bytecode decides how fast Ray's processes start: without it, every one of them compiles PyTorch again.
$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: raytrain needs Python >= 3.11, this is %d.%d; try: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	uv=$$(command -v uv || echo $(BIN)/uv) && \
	$$uv pip sync --quiet --python $(BIN)/python --compile-bytecode requirements.lock && \
	$$uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q raytrain
	touch $@

train: setup
	$(BIN)/raytrain train experiments/digits.py

# The tests that start Ray, hosts or servers on the whole machine, after all others, which share two processes.
WHOLE = tests/integration tests/faults tests/cluster/test_hosts.py
test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(WHOLE:%=--ignore %)
	$(BIN)/python -m pytest $(WHOLE)

# What `make test` leaves out.
slow-test: setup
	$(BIN)/python -m pytest -m slow

SEED ?= 0
# Kills N drivers of sweeps, and as many processes of trials, for each kind of search and scheduler; a kill takes about a minute on two cores.
sweep-faults: setup
	SEED=$(SEED) PYTHONPATH=tests $(BIN)/python -m harness.faults.sweeps_table $(or $(N),20) $(KINDS)

# Injects N faults of each kind into real runs; with 3, one run of each kind, it takes 30 minutes on two cores.
faults: setup
	PYTHONPATH=tests $(BIN)/python -m harness.faults.runs_table $(or $(N),3) $(SEED)

# Injects N faults of each kind into reads of runs at a URL, and into packers; with 30, 300 in all, it takes half an hour on two cores.
data-faults: setup
	PYTHONPATH=tests $(BIN)/python -m harness.faults.data_table $(or $(N),30) $(SEED)

# From `raytrain cluster up` to the cluster's end on three hosts (namespaces of this machine), N times, then faults: needs root.
cluster-test: setup
	PYTHONPATH=tests $(BIN)/python -m harness.cluster.table $(or $(N),10)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --warnings

# The peers, which only the benchmarks need, on top of what `setup` installs.
$(VENV)/.bench: requirements-bench.lock $(VENV)/.ready
	uv=$$(command -v uv || echo $(BIN)/uv) && \
	$$uv pip install --quiet --python $(BIN)/python --compile-bytecode --requirement requirements-bench.lock
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q benchmarks
	touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py $(BENCH)

bench-full: $(VENV)/.bench
	$(BIN)/python benchmarks/run.py --full $(BENCH)

bench-sweep: setup
	$(BIN)/python benchmarks/sweep.py $(BENCH)

# What a sweep's driver costs a trial when 10, 100 and 1,000 trials have ended.
bench-sweep-driver: setup
	$(BIN)/python benchmarks/sweep_driver.py $(BENCH)

bench-deterministic: setup
	$(BIN)/python benchmarks/deterministic.py $(BENCH)

bench-checkpoints: setup
	$(BIN)/python benchmarks/checkpoints.py $(BENCH)

# Augmentation by operations against torchvision v2, image by image.
bench-augmentation: setup
	$(BIN)/python benchmarks/augmentation.py $(BENCH)

bench-check: setup
	$(BIN)/python benchmarks/regression.py

# Rows of `bench` once, on little data: does each kind of side still run? Rows whose peer is not installed are skipped.
bench-smoke: setup
	$(BIN)/python benchmarks/run.py --smoke
	$(BIN)/python benchmarks/gpu.py --dry_run

# The site, into build/site. A broken link or anchor fails.
docs: setup
	$(BIN)/python docs/build.py

# The pictures of the README: a chart of docs/benchmarks.md, and the report of a run on the MNIST in DATA.
DATA ?= data/mnist
pictures: setup
	$(BIN)/python docs/pictures.py chart
	$(BIN)/python docs/pictures.py report --data $(DATA)

# A wheel and a source archive, into dist.
dist: setup
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .cache build dist
