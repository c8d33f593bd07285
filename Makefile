# Each target sets up everything it needs: python3, pip, make and git are enough.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow fuzz bench clean

demo: .venv/installed
	$(BIN)/convoy train

test: .venv/developed
	tools/check

test-slow: .venv/developed
	$(BIN)/pytest -m evidence --timeout 3600

# Property tests with new random inputs (`make test` repeats the same ones), and a million damaged
# inputs for each reader of data files.
fuzz: .venv/developed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --hypothesis-profile=random tests/config tests/cli tests/planning
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz.py

bench: .venv/developed
	GOMP_SPINCOUNT=10000 $(BIN)/python benchmarks/loop_overhead.py
	GOMP_SPINCOUNT=10000 $(BIN)/python benchmarks/checkpoint_stall.py
	GOMP_SPINCOUNT=10000 $(BIN)/python benchmarks/repeat.py
	$(BIN)/python benchmarks/pipeline.py stages
	$(BIN)/python benchmarks/pipeline.py replicas
	$(BIN)/python benchmarks/reduction.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/numerics.py cost
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/start.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/data.py
	GOMP_SPINCOUNT=10000 $(BIN)/python benchmarks/models.py

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# pip 25.1 is the first to read dependency groups.
.venv/developed: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check --group test --group lint
	touch $@

clean:
	rm -rf .venv build *.egg-info
