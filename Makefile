# Every target runs PYTHON -m infra.local COMMAND: with the Python of the installed tools, or else the first of these.
PYTHON ?= $(shell for python in .grantwire/venv/bin/python python3.13 python3.14 python3.12 python3.11 python3; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
	&& echo $$python && break; done)
ifeq ($(strip $(PYTHON)),)
PYTHON := $(or $(shell command -v python3),$(error Grantwire needs Python 3.11 to 3.14. \
	Debian, Ubuntu: apt install python3 python3-venv - macOS: brew install python@3.13))
endif
RUN := @$(PYTHON) -m infra.local
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.grantwire/cache/python

.DEFAULT_GOAL := help
.PHONY: help up down demo status doctor fault logs env invoke test test-containers test-console bench check schema wheel proto audit sbom lock clean

help: ; $(RUN) --help
up: ; $(RUN) up $(STACK) $(if $(WEBHOOK),--webhook '$(WEBHOOK)')
down: ; $(RUN) down
demo: ; $(RUN) demo
status: ; $(RUN) status $(ARGS)
doctor: ; $(RUN) doctor $(ARGS)
fault: ; $(RUN) fault $(ARGS)
logs: ; $(RUN) logs $(ARGS)
env: ; $(RUN) env
invoke: ; $(RUN) invoke $(FN) $(ARGS)
test: ; $(RUN) test $(ARGS)
test-containers: ; $(RUN) test-containers $(ARGS)
test-console: ; $(RUN) test-console $(ARGS)
bench: ; $(RUN) bench $(if $(QUICK),--quick) $(ARGS)
check: ; $(RUN) check $(ARGS)
schema: ; $(RUN) schema
wheel: ; $(RUN) wheel $(ARGS)
proto: ; $(RUN) proto
audit: ; $(RUN) audit
sbom: ; $(RUN) sbom
lock: ; $(RUN) lock $(ARGS)
clean: ; $(RUN) clean
