# Everything is driven from here. Needs Rust and Go, nothing else: Kubernetes is built from the Go module proxy.

.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
# Error messages of tests name the cause; backtraces do not help.
export RUST_LIB_BACKTRACE := 0
ifdef CI
# CI uses a build once, and incremental data takes half of the disk. Line tables serve backtraces only.
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
# clippy's compiler, which lints what it compiles. A developer's builds stay those of rustc, for which `make lint` checks.
unit e2e test-one-node: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
unit e2e test-one-node: export CLIPPY_ARGS := -Dwarnings__CLIPPY_HACKERY__
static: export RUSTC_WORKSPACE_WRAPPER :=
endif
KUBECTL ?= kubectl
# What `make deploy` installs.
OVERLAY ?= full
# Dependencies, and all crates above them, are compiled once for each set of features. So no command has -p, and commands that build
# programs name a small test, too: without a test, cargo leaves out the features of dev-dependencies.
WITH_TEST := --test training
# The programs that the end-to-end tests start.
PROGRAMS := --bin lockstep-manager --bin lockstep-hollow --bin kubectl-lockstep $(WITH_TEST)
XTASK := $(CARGO) build -q --bin xtask $(WITH_TEST) && target/debug/xtask
E2E_TESTS := --test scenarios --test usage
# Scenarios mostly wait, so more of them than processors run at once.
E2E_THREADS ?= 6

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: build
build: ## The programs, unoptimized
	$(CARGO) build $(PROGRAMS)

# The supervisor runs in images of any kind, so nothing of the image is linked.
SUPERVISOR_TARGET := x86_64-unknown-linux-musl
SUPERVISOR := target/$(SUPERVISOR_TARGET)/release/lockstep-run

.PHONY: supervisor
supervisor: ## The supervisor as a static binary, its size and its memory while it runs (adds the musl target)
	rustup target add $(SUPERVISOR_TARGET)
	$(CARGO) build --release -p lockstep-run --target $(SUPERVISOR_TARGET)
	operator/supervisor/measure.sh $(SUPERVISOR)

.PHONY: kubernetes
kubernetes: ## Kubernetes' control plane and kubectl from the Go module proxy (a quarter of an hour the first time, then cached; KUBERNETES=1.36.3 builds that version)
	tests/kubernetes/build.sh

.PHONY: generate
generate: ## crds/, docs/reference, dashboards, pictures and bundle/ from the Rust types, config/ and xtask/dashboards, copies of them in charts/, the agent's CRI code from its proto file
	$(XTASK) generate

# Processors by OCI's names, with commas between them. For this machine's own musl-gcc compiles what is C, for others zig, which xtask installs.
OWN_ARCH := $(subst x86_64,amd64,$(subst aarch64,arm64,$(shell uname -m)))
IMAGE_ARCH ?= $(OWN_ARCH)
PLUGIN_ARCH ?= $(OWN_ARCH)
comma := ,
define static_targets
	@case ",$1," in *,$(OWN_ARCH),*) command -v musl-gcc >/dev/null || { echo "musl-gcc is missing: apt-get install musl-tools" >&2; exit 1; };; esac
	rustup target add $(patsubst %,%-unknown-linux-musl,$(subst amd64,x86_64,$(subst arm64,aarch64,$(subst $(comma), ,$1))))
endef

.PHONY: image
image: ## OCI images of manager, agent, supervisor and trainer into target/images (IMAGE_ARCH=amd64,arm64, otherwise this machine's own; IMAGE_PREFIX, IMAGE_TAG; needs musl-gcc)
	$(call static_targets,$(IMAGE_ARCH))
	$(XTASK) image --arch $(IMAGE_ARCH) $(if $(IMAGE_PREFIX),--prefix $(IMAGE_PREFIX)) $(if $(IMAGE_TAG),--tag $(IMAGE_TAG))

.PHONY: plugin
plugin: ## kubectl lockstep as a static program into target/plugin/ARCH (PLUGIN_ARCH=amd64,arm64, otherwise this machine's own; needs musl-gcc)
	$(call static_targets,$(PLUGIN_ARCH))
	$(XTASK) plugin --arch $(PLUGIN_ARCH)

.PHONY: image-test
image-test: image ## The images under programs of others: skopeo, qemu (container-packages), crane (on PATH or built once into the cache)
	@command -v skopeo >/dev/null || { echo "skopeo is missing: make container-packages" >&2; exit 1; }
	tests/images/others.sh
	tests/images/spoilt.sh

.PHONY: image-twice
image-twice: image ## The images of the last commit again, in another folder: digests have to be equal
	tests/images/twice.sh

.PHONY: bundle
bundle: image ## The bundle for OLM with those images, by digest, and its catalog fragment into target/bundle, its own image into target/lockstep-bundle (bundle/ has tags; IMAGE_ARCH, IMAGE_PREFIX, MAINTAINER='NAME <MAIL>')
	image=$$($(XTASK) bundle $(if $(IMAGE_PREFIX),--prefix $(IMAGE_PREFIX)) $(if $(MAINTAINER),--maintainer '$(MAINTAINER)')); \
	cd tests/bundle && CGO_ENABLED=0 go run -buildvcs=false . -image "$$image" $(CURDIR)/target/bundle

.PHONY: test-bundle
test-bundle: ## The bundle and its catalog fragment under operator-framework's own validators, and spoilt ones that the validators refuse (Go; minutes the first time)
	cd tests/bundle && CGO_ENABLED=0 go test -count=1 .

.PHONY: test-helm
test-helm: ## The chart under Helm 3 and Helm 4: accepted by both, with the same objects (Go; minutes the first time)
	tests/helm/same.sh

VERSION ?=
RELEASE := target/release-$(VERSION)

.PHONY: release
release: ## All files of a release into target/release-VERSION: images, chart, manifests, bundle, plugin, bills of materials, checksums (VERSION=0.1.0, that of Cargo.toml; IMAGE_ARCH, IMAGE_PREFIX, MAINTAINER)
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml); [ "$(VERSION)" = "$$version" ] || { echo "VERSION is '$(VERSION)', but Cargo.toml has $$version" >&2; exit 1; }
	rm -rf target/images target/plugin
	$(MAKE) bundle plugin IMAGE_TAG=v$(VERSION) PLUGIN_ARCH=$(IMAGE_ARCH)
	$(XTASK) release --out $(RELEASE) $(if $(IMAGE_PREFIX),--prefix $(IMAGE_PREFIX))
	cp -r target/bundle $(RELEASE)/bundle
	cp target/lockstep-bundle.tar $(RELEASE)/images
	kubectl=$$(tests/kubernetes/build.sh | tail -n 1)/kubectl; \
	$$kubectl kustomize $(RELEASE)/config/overlays/full >$(RELEASE)/install.yaml; \
	$$kubectl kustomize $(RELEASE)/config/overlays/default >$(RELEASE)/install-no-agents.yaml
	xtask/sbom/write.sh $(RELEASE)/sbom $(subst $(comma), ,$(IMAGE_ARCH))
	cd $(RELEASE) && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >../SHA256SUMS
	mv target/SHA256SUMS $(RELEASE)

.PHONY: release-test
release-test: kubernetes ## The folder of `make release` under other programs, and installed from it by kustomize, one file and Helm on a real control plane (VERSION)
	tests/release/check.sh $(RELEASE)
	$(CARGO) build $(PROGRAMS) --test scenarios
	LOCKSTEP_RELEASE=$(CURDIR)/$(RELEASE) $(CARGO) test --test scenarios -- --ignored release:: --test-threads=2

# The folder of another release, from which `make release-nodes` upgrades.
PREVIOUS ?= $(wildcard target/previous/target/release-*)

.PHONY: release-previous
release-previous: ## The release of the previous commit, in a checkout of its own in target/previous (IMAGE_ARCH)
	rm -rf target/previous
	git worktree add --force --detach target/previous HEAD~1
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' target/previous/Cargo.toml); $(MAKE) -C target/previous release VERSION=$$version

.PHONY: release-nodes
release-nodes: static kubernetes nodes ## The folder of `make release` on real nodes: by kustomize, Helm and OLM, upgraded from the release in PREVIOUS (`make release-previous`) while a gang runs, removed (VERSION; root, node-packages)
	$(CARGO) build --features lockstep-nodes/kubelets --test kubelets
	LOCKSTEP_RELEASE=$(abspath $(RELEASE)) LOCKSTEP_PREVIOUS=$(abspath $(PREVIOUS)) $(KUBELETS) release::

.PHONY: format
format:
	$(CARGO) fmt --all -- --check

.PHONY: lint
lint: format ## Formatting and clippy, also of benchmarks and of the tests that `make test` leaves out
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings

.PHONY: unit
unit: ## Unit and property tests
	$(CARGO) test --workspace --exclude lockstep-e2e

.PHONY: node-packages
node-packages: ## What real nodes need from the distribution (apt, root)
	apt-get update && apt-get install -y --no-install-recommends runc iproute2

.PHONY: container-packages
container-packages: node-packages ## What the other privileged tests need, from the distribution (apt, root)
	apt-get install -y --no-install-recommends busybox-static containerd musl-tools qemu-user-static skopeo

# What runs inside containers of tests: static, without another target than the machine's own.
STATIC_TARGET := $(shell uname -m)-unknown-linux-gnu

.PHONY: static
static: ## Supervisor and trainer as static programs for the containers of tests
	RUSTFLAGS="-Ctarget-feature=+crt-static" $(CARGO) build --release --target $(STATIC_TARGET) -p lockstep-run -p lockstep-trainer

.PHONY: nodes
nodes: ## The programs of a node from the Go module proxy: kubelet, containerd 2, CNI plugins, CoreDNS (minutes the first time, then cached); needs runc
	@command -v runc >/dev/null || { echo "runc is missing: make node-packages" >&2; exit 1; }
	tests/kubernetes/build.sh nodes

CONTAINER_TESTS := --features lockstep-containers/containers --test agent --test image --test supervised

.PHONY: test-containers
test-containers: nodes static kubernetes image ## Agent, supervisor and manager on real containers, agent and manager out of their images, too (root, container-packages); LOCKSTEP_CONTAINERD=DIR replaces containerd 2 by the containerd in that folder
	$(CARGO) build --bin lockstep-agent --bin lockstep-run --bin lockstep-manager --bin lockstep-hollow $(CONTAINER_TESTS)
	$(CARGO) test $(CONTAINER_TESTS) -- --test-threads=2

# Runs a program in namespaces and a cgroup of its own: what a cluster with real nodes leaves ends with them.
INSIDE := tests/nodes/inside.sh
NODES ?= 3
IMAGES ?= development
CLUSTER := target/cluster
NODE_PROGRAMS := --bin lockstep-manager --bin lockstep-agent --bin kubectl-lockstep

.PHONY: cluster-up
cluster-up: static kubernetes nodes ## A cluster with NODES=3 real nodes on this machine: target/cluster/run kubectl ...; IMAGES=released takes the images of `make image` (root, node-packages)
	@! $(CLUSTER)/run true 2>/dev/null || { echo "a cluster is up: make cluster-down" >&2; exit 1; }
	$(CARGO) build $(NODE_PROGRAMS) --bin lockstep-cluster-up
	rm -rf $(CLUSTER)
	mkdir -p $(CLUSTER)
	setsid $(INSIDE) target/debug/lockstep-cluster-up $(NODES) $(CLUSTER) $(IMAGES) >$(CLUSTER)/log 2>&1 & echo $$! >$(CLUSTER)/pid
	@until [ -e $(CLUSTER)/run ]; do sleep 1; \
	  kill -0 "$$(cat $(CLUSTER)/pid)" 2>/dev/null || { cat $(CLUSTER)/log >&2; exit 1; }; done
	@echo 'the cluster is up: $(CLUSTER)/run kubectl get nodes'

.PHONY: cluster-down
cluster-down: ## Ends the cluster of cluster-up and what it has left
	@pid=$$(cat $(CLUSTER)/pid 2>/dev/null) || exit 0; \
	! grep -qs "lockstep-$$pid" /proc/"$$pid"/cgroup || kill -9 "$$pid"; \
	while ls -d /sys/fs/cgroup/*/lockstep-"$$pid" >/dev/null 2>&1; do sleep 0.2; done
	rm -rf $(CLUSTER)

# Scenarios on real nodes; the rest of the line selects some.
KUBELETS := CARGO_TARGET_$(subst -,_,$(shell uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU)_RUNNER=$(CURDIR)/$(INSIDE) $(CARGO) test --features lockstep-nodes/kubelets --test kubelets -- --test-threads=1

.PHONY: test-kubelets
test-kubelets: static kubernetes nodes ## Lockstep installed on real nodes: three kubelets with containerd, CNI and DNS (root, node-packages)
	$(CARGO) build $(NODE_PROGRAMS) --features lockstep-nodes/kubelets --test kubelets
	$(KUBELETS) --skip gates:: --skip release::
	$(KUBELETS) gates::

.PHONY: test-one-node
test-one-node: static kubernetes nodes ## Six of these scenarios on one node (root, node-packages)
	$(CARGO) build $(NODE_PROGRAMS) --features lockstep-nodes/kubelets --test kubelets
	LOCKSTEP_NODES=1 $(KUBELETS) one_node::

.PHONY: node-if-possible
node-if-possible:
	@if why=$$($(INSIDE) ip link add name br0 type bridge 2>&1); then $(MAKE) test-one-node; \
	else echo "skipped: test-one-node: $${why%%$$'\n'*}" >&2; fi

.PHONY: record-traces
record-traces: static kubernetes nodes ## The scenarios of tests/kubelet/traces again on three real nodes, without Lockstep: SCENARIOS=oom,restart-all, otherwise all (root, container-packages)
	$(CARGO) build --bin record-traces
	$(INSIDE) target/debug/record-traces "$(SCENARIOS)"

.PHONY: prometheus
prometheus: ## Prometheus and promtool, those on PATH or built once into the cache (Go)
	tests/prometheus/build.sh

# Programs of the documentation site: built once.
DOCS_TOOLS := target/docs-tools
MDBOOK := 0.5.4
MDBOOK_MERMAID := 0.17.1
TAGS ?=

.PHONY: docs-tools
docs-tools:
	test -x $(DOCS_TOOLS)/bin/mdbook || $(CARGO) install --locked mdbook --version =$(MDBOOK) --root $(DOCS_TOOLS)
	test -x $(DOCS_TOOLS)/bin/mdbook-mermaid || $(CARGO) install --locked mdbook-mermaid --version =$(MDBOOK_MERMAID) --root $(DOCS_TOOLS)

.PHONY: docs
docs: docs-tools ## The documentation site in target/docs: this checkout, the tags in TAGS="v0.1.0 ...", an index of versions; fails on broken links and anchors
	$(XTASK) docs --version "$$(git describe --tags --exact-match 2>/dev/null || echo main)"
	for tag in $(TAGS); do \
	  rm -rf target/docs/checkouts/$$tag && mkdir -p target/docs/checkouts/$$tag && \
	  git archive $$tag | tar x -C target/docs/checkouts/$$tag && \
	  target/debug/xtask docs --version $$tag --checkout target/docs/checkouts/$$tag || exit 1; done
	@echo target/docs/index.html

.PHONY: test-prometheus
test-prometheus: build kubernetes prometheus ## Alerts in promtool; objects and dashboards in the types of Prometheus' operator and Grafana; a real Prometheus over two managers
	tests/prometheus/rules.sh
	tests/prometheus/objects.sh
	tests/prometheus/dashboards.sh
	$(CARGO) test --features lockstep-e2e/prometheus --test prometheus -- --nocapture

.PHONY: karpenter
karpenter: ## Karpenter with its provider of nodes without machines, built once into the cache (Go; minutes)
	tests/karpenter/build.sh

.PHONY: test-karpenter
test-karpenter: kubernetes karpenter ## Gangs on nodes that a real Karpenter creates, removes and repairs
	$(CARGO) build $(PROGRAMS) --test scenarios
	$(CARGO) test --test scenarios -- --ignored karpenter:: --test-threads=2

.PHONY: kueue
kueue: ## Kueue, built once into the cache (Go; minutes)
	tests/kueue/build.sh

.PHONY: test-kueue
test-kueue: kubernetes kueue ## Gangs that a real Kueue admits, preempts and queues again
	$(CARGO) build $(PROGRAMS) --test scenarios
	$(CARGO) test --test scenarios -- --ignored kueue:: --test-threads=2

.PHONY: test-frameworks
test-frameworks: build kubernetes ## Frameworks in gangs of real processes: started as docs/environment.md says, saved on request as docs/how-to/checkpoint-on-request.md says (Python 3 and its package index, 7 GB)
	test -x target/frameworks/bin/python || python3 -m venv target/frameworks
	target/frameworks/bin/python -m pip install -q -r tests/frameworks/requirements.txt
	$(CARGO) test --test suite -- --ignored frameworks:: --test-threads=1
	$(CARGO) test --features lockstep-e2e/frameworks --test frameworks -- --test-threads=1

# Or google-chrome.
CHROMIUM ?= chromium

.PHONY: pictures
pictures: nodes generate ## docs/pictures: restarts, victims and reservations (as `make generate`), and the dashboards drawn by a browser over a real Prometheus (root, container-packages, chromium, npm, pngquant; about fifteen minutes)
	@for tool in "$(CHROMIUM)" npm pngquant; do command -v "$$tool" >/dev/null || { echo "$$tool is missing: apt-get install chromium npm pngquant, or CHROMIUM=path" >&2; exit 1; }; done
	$(MAKE) build kubernetes prometheus static
	$(CARGO) build --bin lockstep-agent
	$(CARGO) run -q -p lockstep-e2e --features pictures --bin lockstep-pictures -- "$$(command -v $(CHROMIUM))" "$$(tests/pictures/uplot.sh)" "$(CURDIR)/docs/pictures"

DASHBOARD := CHROMIUM="$$(command -v $(CHROMIUM))" LOCKSTEP_PLUGIN=$(CURDIR)/target/debug/kubectl-lockstep

.PHONY: dashboard-packages
dashboard-packages:
	@for tool in "$(CHROMIUM)" npm; do command -v "$$tool" >/dev/null || { echo "$$tool is missing: apt-get install chromium npm, or CHROMIUM=path" >&2; exit 1; }; done
	mkdir -p target/dashboard
	cp tests/dashboard/package.json tests/dashboard/package-lock.json target/dashboard
	npm ci --silent --prefix target/dashboard

.PHONY: test-dashboard
test-dashboard: dashboard-packages ## The page of `kubectl lockstep dashboard` in a browser (chromium, node, npm)
	$(CARGO) build --bin kubectl-lockstep
	$(DASHBOARD) node --test tests/dashboard/

# Optimized, because thousands of nodes share the machine.
DASHBOARD_PROGRAMS := --bin lockstep-manager --bin lockstep-hollow --bin kubectl-lockstep --bin lockstep-dashboard-cluster
DASHBOARD_CLUSTER = $(DASHBOARD) target/release/lockstep-dashboard-cluster $$size node tests/dashboard

.PHONY: bench-dashboard
bench-dashboard: kubernetes dashboard-packages ## Times and sizes of that page over busy hollow nodes, the table of docs/benchmarks.md: SIZES="1000/200 5000/500", nodes and gangs (chromium, node, npm; half an hour)
	$(CARGO) build --release $(DASHBOARD_PROGRAMS)
	rm -f target/dashboard/results.json
	for size in $(or $(SIZES),1000/200 5000/500); do $(DASHBOARD_CLUSTER)/bench.mjs target/dashboard/results.json; done

.PHONY: pictures-dashboard
pictures-dashboard: kubernetes dashboard-packages ## docs/pictures/dashboard*: all its pages over busy hollow nodes, SIZES="500/200 5000/500", nodes and gangs (chromium, node, npm, pngquant; half an hour)
	$(CARGO) build --release $(DASHBOARD_PROGRAMS)
	for size in $(or $(SIZES),500/200 5000/500); do $(DASHBOARD_CLUSTER)/pictures.mjs docs/pictures docs/how-to/dashboard-pictures.md; done

.PHONY: e2e
e2e: kubernetes ## Scenarios on a real control plane; LOCKSTEP_KUBECONFIG=FILE takes a cluster with Lockstep deployed
	$(CARGO) build $(if $(CI),--bins,$(PROGRAMS)) $(E2E_TESTS)
	$(CARGO) test $(E2E_TESTS) -- --test-threads=$(E2E_THREADS)

.PHONY: test-installations
test-installations: kubernetes ## The same story after six installations under other names: three by overlays, three by OLM (make test has one of each)
	$(CARGO) build $(PROGRAMS) --test scenarios
	$(CARGO) test --test scenarios -- --include-ignored elsewhere:: --test-threads=$(E2E_THREADS)

.PHONY: demo
demo: PROGRAMS += --bin lockstep-trainer --bin lockstep-demo
demo: build kubernetes ## Lockstep at work, live, on this machine; DEMO_KEEP=1 leaves it running, with dashboards if prometheus is on PATH
	target/debug/lockstep-demo

.PHONY: demo-kubelets
demo-kubelets: static kubernetes nodes ## Lockstep on three real nodes, live: placement, failures, a lost node, preemption, uninstall, times by tier (root, node-packages)
	$(CARGO) build $(NODE_PROGRAMS) --bin demo-kubelets
	$(INSIDE) target/debug/demo-kubelets

.PHONY: test
test: $(if $(CI),format,lint) unit e2e node-if-possible ## Everything that must pass before a change lands

.PHONY: test-full
test-full: test lint ## The long and privileged rest, hours: ten times the random tests, larger crash sweeps, e2e again and again, containers, images (root, container-packages)
	PROPTEST_CASES=100000 $(CARGO) test -p lockstep-engine --tests
	PROPTEST_CASES=2000 PROPTEST_RNG_SEED=$$RANDOM $(CARGO) test -p lockstep-lifecycle -p lockstep-scheduler -p lockstep-manager
	SIM_SEEDS=200 SIM_STORIES=12500 SIM_SEED=$$RANDOM $(CARGO) test -p lockstep-sim -- --nocapture
	LOCKSTEP_SWEEP_MEMBERS=6 $(CARGO) test --test scenarios -- crash::
	LOCKSTEP_SILENCE_SECONDS=600 $(CARGO) test --test scenarios -- idle
	for run in 1 2 3 4 5; do $(MAKE) e2e; done
	$(MAKE) e2e & $(MAKE) e2e && wait $$!
	$(MAKE) test-installations
	$(CARGO) test --test scenarios -- --ignored crash:: native:: upstream::
	$(MAKE) docs
	$(MAKE) test-prometheus
	$(MAKE) test-karpenter
	$(MAKE) test-kueue
	$(MAKE) test-frameworks
	$(MAKE) test-dashboard
	$(MAKE) test-containers
	LOCKSTEP_CONTAINERD=/usr/bin $(MAKE) test-containers
	$(MAKE) test-kubelets
	$(MAKE) demo-kubelets
	$(MAKE) image-test IMAGE_ARCH=amd64,arm64
	$(MAKE) image-twice IMAGE_ARCH=amd64,arm64
	$(MAKE) test-bundle test-helm
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml); \
	$(MAKE) release release-test release-previous release-nodes VERSION=$$version IMAGE_ARCH=amd64,arm64 MAINTAINER='Test <test@example.com>'
	$(MAKE) demo

.PHONY: bench
bench: ## Times of the engine's decisions over RUNS runs, instruction counts, the tables of docs/benchmarks.md (TARGET=x86_64-unknown-linux-musl: as in images)
	tests/bench/run.sh

.PHONY: bench-quality
bench-quality: ## Victims of a folder of instances: INSTANCES=dir OUT=answers.jsonl OBJECTIVE=strict|least-work ARM=engine|kep|ratio|no-METHOD
	$(CARGO) run -q --release --bin bench-quality -- $(INSTANCES) $(OUT) $(or $(OBJECTIVE),strict) $(or $(ARM),engine)

.PHONY: bench-two-shapes
bench-two-shapes: ## Victims for gangs of two shapes beside proven optima, the tables of docs/benchmarks.md; ARM=no-METHOD (needs Python 3)
	python3 tests/bench/quality/generate.py target/two-shapes
	for order in strict least-work; do \
		$(CARGO) run -q --release --bin bench-quality -- target/two-shapes target/two-shapes-$$order.jsonl $$order $(or $(ARM),engine); \
		python3 tests/bench/quality/score.py target/two-shapes tests/bench/quality/optima.jsonl $$order target/two-shapes-$$order.jsonl; \
	done

.PHONY: bench-topology
bench-topology: ## How fast the scheduler places gangs of 4 and 1,000 pods, each in a rack, on 5,000 nodes; RUNS=5
	$(CARGO) run -q --release -p lockstep-bench --bin bench-topology -- $(or $(RUNS),5)

.PHONY: bench-scrape
bench-scrape: ## How long a leading manager takes to answer a scrape, by workloads
	$(CARGO) run -q --release -p lockstep-bench --bin bench-scrape

.PHONY: bench-kubelets
bench-kubelets: image static kubernetes nodes ## Restarts on real nodes with the images of `make image`, in place against RecreateGang (root, node-packages): ROUNDS=30 ARMS=supervised,...
	$(CARGO) build --release --bin bench-kubelets
	$(INSIDE) target/release/bench-kubelets $(or $(ROUNDS),30) $(ARMS)

.PHONY: bench-month
bench-month: ## A month of failures, maintenance, preemptions and false alarms on 1,250 nodes, by arm: the tables of docs/benchmarks.md
	$(CARGO) run -q --release --bin bench-month

.PHONY: bench-scale
bench-scale: kubernetes ## A gang on NODES hollow nodes, each with its agent: times and writes by arm; ROUNDS=3, LATENCY=measured|zero, PODS=100000 of others, PARTS=restarts,slow,...
	$(CARGO) build --release --bin lockstep-manager --bin lockstep-hollow --bin lockstep-bench-scale
	$(CARGO) run -q --release --bin lockstep-bench-scale

.PHONY: mutants
mutants: ## Mutations of the engine: FILE=operator/engine/src/queue.rs (needs cargo-mutants; hours without FILE)
	$(CARGO) mutants -p lockstep-engine $(if $(FILE),-f $(FILE))

.PHONY: audit
audit: ## Licences, sources, bans and advisories of dependencies (needs cargo-deny)
	cargo deny check --hide-inclusion-graph

.PHONY: install
install: ## The definitions into the cluster of the current context
	$(KUBECTL) apply -k config/crd

.PHONY: deploy
deploy: ## OVERLAY (full: agents included, or default: without) into the cluster of the current context
	$(KUBECTL) apply -k config/overlays/$(OVERLAY)

.PHONY: undeploy
undeploy: ## Lockstep out of the cluster of the current context: workloads, their pods, the rest (KEEP_PODS=1: pods of workloads stay)
	if $(KUBECTL) get crd trainingworkloads.training.lockstep.dev >/dev/null; then \
	  $(KUBECTL) delete tw -A --all $(if $(KEEP_PODS),--cascade=orphan); fi
	$(if $(KEEP_PODS),,$(KUBECTL) wait --for=delete pod -A -l training.lockstep.dev/workload --timeout=10m)
	$(KUBECTL) delete deployment -A -l app.kubernetes.io/name=lockstep
	$(KUBECTL) delete -k config/overlays/$(OVERLAY) --ignore-not-found
