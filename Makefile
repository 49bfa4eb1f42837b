# Every command a person types. `make help` lists them.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
# PY=/path/to/python uses an environment that you already have; nothing is installed into it.
PY ?= $(VENV)/bin/python
READY = $(if $(filter $(VENV)/bin/python,$(PY)),$(VENV)/.ready $(patsubst %,$(VENV)/.%,$(filter slurm ray,$(ENGINE))))

S ?= blog
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
SCALE ?= $(if $(GPU),blog,cpu)
export TEXT PEER
# What `make sweep` hands to train.py: one override for each variable that is set. TEXT is a name in conf/text, or a path.
ASKED = sweeps=$(S) scale=$(SCALE) $(if $(SEEDS),'seed=$(SEEDS)') \
  $(if $(TEXT),$(if $(wildcard conf/text/$(TEXT).yaml),text=$(TEXT),text=file 'text.path=$${oc.env:TEXT}')) \
  $(if $(WANDB),wandb.mode=$(WANDB)) $(if $(ENGINE),hydra/launcher=$(ENGINE)) $(if $(JOBS),hydra.launcher.jobs=$(JOBS)) \
  $(if $(filter-out 0,$(DRY)),hydra.launcher.dry=true) $(ARGS)
# Which sweeps `make status` and `make resume` look at: all, unless S or SCALE is given.
CHOSEN = $(if $(filter command,$(origin S)),--sweep $(S)) $(if $(filter command,$(origin SCALE)),--scale $(SCALE))

# A variable that is misspelled on the command line would be ignored by make.
KNOWN := S SCALE SEEDS TEXT WANDB DRY JOBS ENGINE FROM ARGS PEER PEER_HF PY PYTHON
GIVEN := $(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $v))),$v))
ifneq ($(filter-out $(KNOWN) MAKE%,$(GIVEN)),)
$(error $(filter-out $(KNOWN) MAKE%,$(GIVEN)): no such variable. Allowed: $(KNOWN))
endif

.DEFAULT_GOAL := help
.PHONY: help setup sweep status resume merge results bench speedrun notebooks test lint format wandb-sync clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY) ## a virtual environment with the pinned packages (the other commands do this by themselves)

$(VENV)/.ready: constraints.txt pyproject.toml
	@echo "setting up $(VENV) (once, a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install -q -c constraints.txt ".[bpe,dev,notebooks]"
	@touch $@

$(VENV)/.slurm $(VENV)/.ray: $(VENV)/.%: $(VENV)/.ready
	@$(VENV)/bin/pip install -q -c constraints.txt ".[$*]"
	@touch $@

sweep: $(READY) ## train a sweep; S=mlp_norm SCALE=blog SEEDS=0,1 TEXT=pydocs WANDB=online JOBS=2 DRY=1 ENGINE=slurm ARGS="train.lr=3e-4"
ifeq ($(origin SCALE)$(GPU),file)
	@echo "No GPU found: SCALE=cpu, minutes on a laptop. The full study, hours on a CPU: make sweep SCALE=blog"
endif
	$(PY) train.py $(strip $(ASKED))

status: $(READY) ## jobs, states, progress and time left of every sweep in runs/, from its folders alone; S= SCALE=
	@$(PY) -m engine.status $(CHOSEN) $(ARGS)

resume: $(READY) ## go on with sweeps whose driver has died; S= SCALE= ENGINE=
	$(PY) -m engine.resume $(CHOSEN) $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

merge: $(READY) ## bring in the runs of another machine; FROM=path/to/its/runs
	$(PY) -m storage.merge "$(FROM)" $(ARGS)

speedrun: $(READY) ## seconds to 1.88 nats per character; PEER=<checkout of nanoGPT> SEEDS=0,1,2 TEXT=path/to/tinyshakespeare
	$(PY) -m bench.speedrun $(if $(PEER),--peer "$$PEER") $(if $(TEXT),--text "$$TEXT") $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

results: $(READY) ## gather finished runs into results/ and rebuild every table and figure
	$(PY) -m analysis.report

bench: $(READY) ## speed beside nanoGPT, growth, overhead, minutes; PEER=<checkout of nanoGPT> PEER_HF=1 ARGS=--quick
	$(PY) -m bench $(if $(PEER),--peer "$$PEER") $(if $(filter-out 0,$(PEER_HF)),--hf) $(ARGS)

notebooks: $(READY) ## execute notebooks/ and write each with its outputs to results/notebooks/
	$(PY) -m nbconvert --execute --to markdown --output-dir results/notebooks notebooks/*.ipynb

test: $(READY) ## the tests, about ten minutes
	$(PY) -m pytest -q -n 2 --dist loadgroup

lint: $(READY) ## style and errors
	$(PY) -m ruff check . && $(PY) -m ruff format --check .

format: $(READY) ## rewrite the code in the house style
	$(PY) -m ruff check --fix . && $(PY) -m ruff format .

wandb-sync: $(READY) ## upload finished runs that were logged offline
	$(PY) -m storage.sync

clean: ## remove the environment and caches; runs, results and texts stay
	rm -rf $(VENV) .pytest_cache .ruff_cache && find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
