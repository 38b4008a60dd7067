# What can be done here. `make demo` and `make test` do their own set-up: Rust and a C++ compiler are all they need.

CARGO ?= cargo
CAPTURE ?=
KEEP ?=
SEEDS ?= 100
SPEC ?= ../shared/spec
CONFORMANCE ?= ../shared/conformance
# Arguments for the player of the controller's stories.
STORIES ?= --jobs=16
# What the programs are built from. After `make test`, BUILD="--workspace --all-features --tests" has nothing left to build.
BUILD ?= -p inferencecache-server -p kvevent-subscriber -p kvevent-fake-engine -p inferencecache-examples
# Tools that the tree does not hold are kept out of it.
CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/inferencecache
# The number in its name goes up with the list of packages.
VENV = $(CACHE)/venv/done-2
DENY_VERSION = 0.20.2
GRPCURL_VERSION = v1.9.4

.PHONY: help demo test soak lint bench bench-peers load conformance clients cases crds crd-facts cluster admission controller-stories package features

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: ## Replay recorded engines through real processes and check each hint (CAPTURE=file, KEEP=1)
	$(CARGO) build --bins $(BUILD)
	target/debug/demo $(if $(KEEP),--keep) $(if $(CAPTURE),"$(CAPTURE)")

test: ## Every test, examples included
	$(CARGO) test --workspace --all-features

soak: ## The long runs: 10^7 differential operations, 10^6 hostile messages, stress, SEEDS=100 runs of faults
	SEEDS=$(SEEDS) $(CARGO) test --workspace --all-features --release -- --ignored --nocapture --test-threads=1

lint: $(CACHE)/bin/cargo-deny ## fmt, clippy and docs with warnings denied, cargo deny
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-features --all-targets -- -D warnings
	$(CARGO) clippy --workspace -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps
	$(CACHE)/bin/cargo-deny --all-features check bans licenses sources

$(CACHE)/bin/cargo-deny:
	@echo "installing cargo-deny $(DENY_VERSION) into $(CACHE) (a few minutes, once)"
	$(CARGO) install --debug --locked --root $(CACHE) --target-dir $(CACHE)/build cargo-deny@$(DENY_VERSION)
	rm -rf $(CACHE)/build

bench: ## Criterion benchmarks and the table of bytes per block
	$(CARGO) bench -p inferencecache-benches

bench-peers: ## The index side by side with its peers, row by row (ROWS=P4,P9, QUICK=1); fails when a row is missed
	cd benches/peers && $(CARGO) build --release && target/release/peers $(if $(ROWS),--rows $(ROWS)) $(if $(QUICK),--quick)

load: ## A server under load for ten minutes: table and plot into docs/benchmarks (SECONDS=60)
	$(CARGO) build --release -p inferencecache-server -p inferencecache-examples --bin inferencecache-server --bin load
	target/release/load $(if $(SECONDS),--seconds=$(SECONDS))

$(VENV):
	python3 -m venv $(CACHE)/venv
	$(CACHE)/venv/bin/pip install --quiet grpcio grpcio-tools pyyaml kubernetes requests jsonpatch
	touch $@

SERVER = target/debug/inferencecache-server --grpc-bind-address=127.0.0.1:{grpc} \
	--http-bind-address=127.0.0.1:{http} --snapshot-bind-address=127.0.0.1:{internal} --insecure-disable-auth \
	--lame-duck=0s
PROTO = inferencecache-wire/proto/inferencecache/v1alpha1/inferencecache.proto

conformance: $(VENV) ## Play the recorded answers of the Go implementation (CONFORMANCE=folder)
	$(CARGO) build --bins $(BUILD)
	$(CACHE)/venv/bin/python $(CONFORMANCE)/play.py --proto $(PROTO) --server "$(SERVER)" $(CONFORMANCE)/index.jsonl $(CONFORMANCE)/policy.jsonl

clients: $(VENV) ## Other people's clients against the server: curl, grpcurl (installed if there is Go), Python
	$(CARGO) build --bins $(BUILD)
	@if command -v go >/dev/null && [ ! -x $(CACHE)/bin/grpcurl ]; then GOBIN=$(CACHE)/bin go install github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL_VERSION) || echo "grpcurl cannot be installed"; fi
	PATH="$(CACHE)/bin:$$PATH" bins/server/tests/clients/run target/debug/inferencecache-server $(CACHE)/venv/bin/python

cases: ## Which numbered cases of the specifications no test names (SPEC=folder)
	.ci/uncovered-cases $(SPEC)

CLUSTER = inferencecache-kube/src/testkit/cluster.sh
PARTS ?=

cluster: ## Build a Kubernetes control plane for tests into the cache, once (PARTS="apiserver kubectl etcd")
	@$(CLUSTER) $(PARTS)

admission: $(VENV) ## Play the recorded admission reviews against the controller on a real API server (CONFORMANCE=folder)
	$(CARGO) build --workspace --all-features --bin inferencecache-controller --example admission
	.ci/admission $(CACHE)/venv/bin/python $(CONFORMANCE)

controller-stories: $(VENV) ## Play the recorded stories against controller and server on a real API server (STORIES="--only=^policy/ --jobs=8")
	$(CARGO) build --workspace --all-features --bin inferencecache-controller --bin inferencecache-server --example admission
	.ci/controller $(CACHE)/venv/bin/python $(CONFORMANCE) $(STORIES)

crds: ## Write the CustomResourceDefinitions from the types (a test compares them)
	$(CARGO) run -p inferencecache-kube --all-features --example crdgen inferencecache-kube/deploy/crds

crd-facts: $(VENV) ## Compare the definitions with those recorded from the Go implementation (CONFORMANCE=folder)
	$(CACHE)/venv/bin/python $(CONFORMANCE)/crd_facts.py --check $(CONFORMANCE)/crd-facts.jsonl inferencecache-kube/deploy/crds/*.yaml

package: ## Pack the three libraries as a user would get them, and build each alone
	.ci/package

features: ## Each library without features, and wire with each of its own
	$(CARGO) check -p inferencecache-core --no-default-features
	$(CARGO) check -p inferencecache-wire --no-default-features
	$(CARGO) check -p inferencecache-kube --no-default-features
	$(CARGO) check -p inferencecache-kube --no-default-features --features webhook
	for feature in client server subscriber t2-redis tokenizer canary testkit tls server,tls; do \
		$(CARGO) check -p inferencecache-wire --no-default-features --features $$feature || exit 1; \
	done
	$(CARGO) check -p inferencecache-server --no-default-features
