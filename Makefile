# Every target but `help` and `clean` makes the virtual environment it needs, once: `make demo` and `make test`
# work from a bare checkout. Pass arguments through ARGS: make test ARGS="tests/unit -k history -x"

ARGS ?=

ifndef PYTHON
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v "$$python"; break; }; done)
endif

RUN := .venv/bin/
PARTS := --editable '.[embedded,openai,anthropic]' --group test --group check
PIP_QUIETLY := -m pip --disable-pip-version-check --no-input --quiet

# Named after what went into the environment and where it lies: when one of them changes, it is made anew.
READY := .venv/ready-$(shell { pwd -P; "$(PYTHON)" -VV; cat pyproject.toml constraints.txt; } 2>&1 | cksum | tr -d ' ')

.PHONY: help demo test check bench pins clean
.DEFAULT_GOAL := help

help: ## Say what there is.
	@sed -n 's/^\([a-z]*\):.*## /  make \1	/p' Makefile

demo: $(READY) ## Kill a worker in the middle of a refund, and watch another one take over.
	@PATH="$(CURDIR)/.venv/bin:$$PATH" helix-dbos demo $(ARGS)

test: $(READY) ## Run the tests, two at a time, on PostgreSQL of their own or on HELIX_TEST_DATABASE_URL.
	@$(RUN)python -m pytest --numprocesses 2 $(ARGS)

check: $(READY) ## Check format, lint, types, and which module may import which.
	@failed=0; for each in 'ruff format --check .' 'ruff check .' basedpyright lint-imports; do \
		echo "$$each"; $(RUN)$$each || failed=1; done; exit $$failed

bench: $(READY) ## Measure on this machine.
	@$(RUN)python -m benchmarks $(ARGS)

pins: ## Write constraints.txt anew, with the newest versions that pyproject.toml allows.
	@draft=$$(mktemp -d) && trap 'rm -rf "$$draft"' EXIT \
	&& "$(PYTHON)" -m venv "$$draft" \
	&& "$$draft/bin/python" $(PIP_QUIETLY) install --upgrade pip \
	&& "$$draft/bin/python" $(PIP_QUIETLY) install $(PARTS) editables \
	&& "$$draft/bin/python" $(PIP_QUIETLY) freeze --all --exclude-editable --exclude setuptools >"$$draft/pins" \
	&& cp "$$draft/pins" constraints.txt

clean: ## Remove what the other targets made in this folder.
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

$(READY):
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or later with its venv module is needed; name one: make PYTHON=...' >&2; exit 1; }
	@echo 'Making .venv; this takes a minute or two, once.'
	@"$(PYTHON)" -m venv --clear .venv
	@$(RUN)python $(PIP_QUIETLY) install --constraint constraints.txt --upgrade pip
	@$(RUN)python $(PIP_QUIETLY) install --constraint constraints.txt --build-constraint constraints.txt $(PARTS)
	@touch $@
