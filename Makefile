# Everything runs from .venv, which is built when it is missing or stale.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv check format test try demo simulate crash long night compat wheel dist faults fault-tools alert-tools systemd-tools helm-tools manifest browser-tools lock lock-jars clean containers container-tools

VENV := .venv
BIN := $(VENV)/bin
CODE := delayservice connectors ha devtools tests docs/examples
COMPILE = $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate \
	--no-emit-find-links --universal --python-version 3.11 --custom-compile-command "make lock"

# A venv of the folder $(1) with what the options $(2) list, each package by its hash, and the clone
# itself. Its development tools are in no wheel, so their folder is put on the path.
define make_venv
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later with venv is needed. Type:" \
		"sudo apt-get install -y python3 python3-venv" >&2; exit 1; }
	@rm -rf $(1) && $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --disable-pip-version-check --require-hashes $(2)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation -e .
	@echo "$(CURDIR)/devtools" > "$$($(1)/bin/python -c \
		'import sysconfig; print(sysconfig.get_path("purelib"))')/devtools.pth"
endef

# The first Python of 3.11 or later that can make a venv; no name when there is none. One that was
# built with optimisations is preferred, for it takes a fifth less CPU: a distribution's, or by its
# options.
ifndef PYTHON
PYTHON := $(shell for fast in 1 0; do \
	for name in python3.11 /usr/bin/python3.11 python3 /usr/bin/python3 python3.12 python3.13; do \
	$$name -c "import sys, sysconfig, venv, ensurepip; \
	is_fast = sys.base_prefix == '/usr' or '--enable-optimizations' in str(sysconfig.get_config_var('CONFIG_ARGS')); \
	sys.exit(sys.version_info < (3, 11) or is_fast < $$fast)" \
	2>/dev/null && echo $$name && exit; done; done)
endif

# The stamp's name is made of what the venv was made of. File times would not do: a checkout may
# bring an older lock with a newer time, and a copied .venv still belongs to the folder it was in.
SOURCES := pyproject.toml $(wildcard requirements/*.txt)
STAMP := $(VENV)/.built-$(shell { pwd; $(PYTHON) -V; cat $(SOURCES); } 2>&1 | cksum | cut -d' ' -f1)

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## build .venv when it is missing or stale

# Built anew, not updated: a stale one may come from another Python or another folder.
$(STAMP):
	@echo "making $(VENV)"
	$(call make_venv,$(VENV),--quiet -r requirements/node.txt -r requirements/spark.txt -r requirements/dev.txt)
	@touch $@

check: $(STAMP)  ## format, lint, types
	$(BIN)/ruff format --check --diff $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

format: $(STAMP)  ## put the code in its format and repair what ruff can
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# What needs real servers runs after the rest: these tests mostly wait, so two of them at a time take
# little more than half as long, each with servers of its own. All parts run even when one fails.
test: check  ## check, then what shows within minutes whether a change is sound; ARGS reach pytest
	@status=0; \
	$(BIN)/pytest -n auto --dist worksteal -m "not cluster and not fault and not long and not night" $(ARGS) || status=1; \
	$(BIN)/pytest -n 2 --dist loadfile --durations=10 -m quick $(ARGS) || status=1; \
	exit $$status

# Needs no Spark, so it has a venv of its own unless the whole one is there.
TRY := $(if $(wildcard $(STAMP)),$(VENV),.venv-try)
TRY_STAMP := $(TRY)/$(notdir $(STAMP))

try: $(TRY_STAMP)  ## Kafka, a node and a first delayed record, to play with; ARGS as --once
	$(TRY)/bin/delayservice dev try $(ARGS)

.venv-try/.built-%:
	@echo "1/2  making .venv-try with what the service and an embedded Kafka need"
	$(call make_venv,.venv-try,--no-compile -r requirements/node.txt -r requirements/dev.txt)
	@echo "2/2  starting Kafka"
	@touch $@

demo: $(TRY_STAMP)  ## the main job on a real cluster, with the service killed in it
	$(TRY)/bin/delayservice dev demo $(ARGS)

simulate: $(STAMP)  ## the simulation in its long mode; ARGS reach pytest
	SIMULATION_MODE=long $(BIN)/pytest tests/simulation --timeout=0 $(ARGS)

crash: $(STAMP)  ## the crash sweeps of the durable stores, in full
	CRASH_MODE=long $(BIN)/pytest tests/crash --timeout=0 $(ARGS)

# With its connector to Kafka in Spark's own folder, a job resolves no packages when it starts.
JARS := $(VENV)/.spark-jars
$(JARS): $(STAMP) connectors/spark/common/jars.lock
	@sh connectors/spark/common/install_jars.sh $(BIN)/python > $@.log 2>&1 && touch $@ \
		|| { cat $@.log; echo "The connector was not installed: each job fetches it" >&2; }

# What fills the machine by itself, Spark and what kills nodes, runs alone, last.
long: $(STAMP) browser-tools helm-tools $(JARS)  ## every other test, on real servers and without, three faults too; ARGS reach pytest
	@status=0; \
	$(BIN)/pytest -n auto --dist worksteal --durations=10 -m long $(ARGS) || status=1; \
	$(BIN)/pytest -n 2 --dist loadfile --ignore tests/spark --durations=25 \
		-m "cluster and not quick and not fault and not night" $(ARGS) || status=1; \
	$(BIN)/pytest tests/spark tests/faults --fault-seed=1 --durations=10 \
		-m "cluster and not quick and not fault and not night or sample" $(ARGS) || status=1; \
	exit $$status

night: $(STAMP)  ## what takes its time on a cluster and CI leaves out; ARGS reach pytest
	$(BIN)/pytest -m night $(ARGS)

# A copy is built, because a build takes up what earlier ones left beside its sources. Clock, umask
# and modes are fixed, so that the same commit gives the same bytes.
DIST := dist
wheel: $(STAMP)  ## build the wheel into the folder DIST
	@stage=$$(mktemp -d) && trap 'rm -rf "$$stage"' EXIT && umask 022 \
	&& cp -RL pyproject.toml README.md LICENSE delayservice connectors ha "$$stage" \
	&& chmod -R u=rwX,go=rX "$$stage" \
	&& SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct || echo 315532800) \
		$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-index --no-deps \
		--no-build-isolation --check-build-dependencies --wheel-dir "$(DIST)" "$$stage"

dist: wheel  ## build the wheel, and try it in venvs of its own
	DIST=$(abspath $(DIST)) $(BIN)/pytest tests/integration/test_packages.py $(ARGS)

# As root, on Debian: Docker Engine is unpacked and started for this alone, and removed afterwards.
containers: $(STAMP) container-tools  ## build the images, run Compose and Kubernetes files; ARGS as --parts=images
	@$(MAKE) --no-print-directory manifest ARGS=
	$(BIN)/python -m tests.containers $(ARGS)

KAFKAS := 3.9 4.3
COMPAT := tests/compat tests/faults/test_kills.py $(addprefix tests/integration/test_, \
	service_contract.py service_crash.py service_topics.py levels.py security.py)
compat: $(STAMP)  ## contract, crashes, rights and take-over on each version of Kafka; ARGS reach pytest
	@status=0; for kafka in $(KAFKAS); do \
		echo "Kafka $$kafka"; \
		DELAY_DEV_KAFKA=$$kafka $(BIN)/pytest -m "not night and (not fault or sample)" $(COMPAT) \
			$(ARGS) || status=1; \
	done; exit $$status

# Without these packages, or without root, the scenarios that need them are skipped and say so.
faults: $(STAMP) fault-tools alert-tools  ## every fault on real processes; ARGS reach pytest
	$(BIN)/pytest tests/faults --timeout=900 $(ARGS)

# The programs $(1), from the Debian packages $(2), if root and one of them is missing.
define install
	@for tool in $(1); do command -v $$tool > /dev/null || missing=1; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends $(2) \
		&& exit 0; fi; \
	echo "Some tests will be skipped. Type as root: apt-get install -y $(2)" >&2
endef

fault-tools:  ## install what the fault suite needs of Debian, if root and missing
	$(call install,ip nft cc,iproute2 nftables gcc libc6-dev)

alert-tools:  ## install what the tests of alerts need of Debian, if root and missing
	$(call install,promtool prometheus,prometheus)

systemd-tools:  ## install what the tests of units need of Debian, if root and missing
	$(call install,systemd-analyze,systemd)

HELM := helm.sh/helm/v3/cmd/helm@v3.19.0
helm-tools: $(STAMP)  ## build Helm, which the tests of the chart need, if Go is there and Helm is missing
	@command -v helm > /dev/null || test -x $(BIN)/helm || GOBIN=$(abspath $(BIN)) go install $(HELM) \
		|| echo "Some tests will be skipped: go 1.24 or later is needed to build $(HELM)" >&2

# For a cluster without a release of Helm, and for `make containers`.
manifest: helm-tools  ## render the chart into deploy/kubernetes/elsewhere.yaml; ARGS as --set 'targets={orders*}'
	"$$(command -v helm || echo $(BIN)/helm)" template delayservice deploy/helm/delayservice \
		--kube-version 1.33 --namespace kafka --set zookeeper.create=true \
		--set existingSecret=delayservice --set 'targets={orders*,payments}' \
		--set kafka.bootstrap=my-cluster-kafka-bootstrap:9092 $(ARGS) > deploy/kubernetes/elsewhere.yaml

container-tools:  ## install what `make containers` needs of Debian, if root and missing
	$(call install,mmdebstrap podman catatonit docker-compose runc iptables ip,mmdebstrap podman catatonit \
		buildah runc netavark aardvark-dns iptables docker-compose iproute2)

browser-tools:  ## install what the tests of the page need of Debian, if root and missing
	$(call install,chromium chromedriver,chromium chromium-driver)

# Spark and the tests come on top of what a node needs, and are installed beside it.
BESIDE_NODE = -c requirements/node.txt \
	$$(sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/node.txt) pyproject.toml
lock: $(STAMP)  ## write the lock files anew from pyproject.toml
	sed -n 's/^requires = \["\(.*\)"\].*/\1/p' pyproject.toml | $(COMPILE) - -o requirements/build.txt
	$(COMPILE) --extra node pyproject.toml -o requirements/node.txt
	$(COMPILE) --extra spark $(BESIDE_NODE) -o requirements/spark.txt
	$(COMPILE) --extra dev -c requirements/spark.txt $(BESIDE_NODE) -o requirements/dev.txt

lock-jars: $(STAMP)  ## write the locks of the jars anew
	$(BIN)/python -m delay_devtools.lock_jars
	sh connectors/spark/common/install_jars.sh $(BIN)/python --lock

clean:  ## remove .venv and every cache in this folder
	rm -rf $(VENV) .venv-try build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
