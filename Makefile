# make train: a training run of the embedded policy, from nothing but Python and git.   make test: the whole suite.
PYTHON ?= python3
VENV := .venv
RANKS ?= 2
export OMP_NUM_THREADS := 1

.PHONY: train test bench clean

train: $(VENV)/ready
	$(VENV)/bin/torchrun --standalone --nproc-per-node $(RANKS) train.py --env searchqa $(ARGS)

test: $(VENV)/ready
	$(VENV)/bin/python -m pytest -q tests $(ARGS)

bench: $(VENV)/ready
	$(VENV)/bin/python -m pytest --bench $(ARGS)

# `ready` is written last, so an installation that was cut short starts again.
$(VENV)/ready: requirements.txt
	@echo "installing into $(VENV): minutes, and some gigabytes"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
