# make demo     trains a small model on this machine      make test    runs the tests
# make lint     ruff, mypy, import contracts              make bench   measures, and compares with the targets
# make chaos    kills, stops and slows down jobs for as long as you like: docs/reliability.md
# make fuzz-sim     runs simulated jobs with faults until it is stopped       make sim-seeds   a thousand of them
# make clean    removes everything that make made           make pictures    makes the pictures in the docs
#
# Each sets up .venv first if it has to. PYTHON=/path/to/python3.12 chooses the Python it is made with.

PYTHON ?=
READY := .venv/.ready

export DLROVER_LITE_HOME = $(CURDIR)/.home

.PHONY: demo test lint bench chaos fuzz-sim sim-seeds pictures clean again

demo: $(READY)
	@.venv/bin/dlrover-lite run recipes/quickstart.yaml
	@echo
	@echo 'To type these commands as they stand, first: export PATH="$(CURDIR)/.venv/bin:$$PATH" DLROVER_LITE_HOME="$(CURDIR)/.home"'

test: $(READY)
	@.venv/bin/python -m pytest -n 4

lint: $(READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: $(READY)
	@.venv/bin/python bench/all.py

chaos: $(READY)
	@CHAOS=long .venv/bin/python -m pytest -n 2 --timeout=900 tests/chaos tests/k8s/test_job_faults.py tests/tui/test_random_keys.py

fuzz-sim: $(READY)
	@.venv/bin/python -m dlrover_lite.simulation.fuzz --first $${FIRST:-$$(date +%s)}

sim-seeds: $(READY)
	@.venv/bin/python -m dlrover_lite.simulation.fuzz --first $${FIRST:-1} --seeds $${SEEDS:-1000}

pictures: $(READY)
	@.venv/bin/python tools/pictures.py

clean:
	rm -rf .venv .home build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the path of the checkout it was made in: moved, copied, or with its Python gone, .venv is made again.
ifneq ($(shell cat $(READY) 2>/dev/null && .venv/bin/python -c '' 2>&1),$(CURDIR))
$(READY): again
endif

$(READY): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh "$(CURDIR)" "$(PYTHON)"
