# What people and CI call. Only setup changes the machine: it installs Debian
# packages that are missing. The other targets write to bin/ and Go's cache.

# Which packages make test runs, more flags for go test, and how many packages at
# a time: tests wait more than they work, so two share the cores well.
PKG       ?= ./...
TESTFLAGS ?=
P         ?= 2

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The version comes from here: Go's own stamp fails where git distrusts the clone's
# owner.
export GOFLAGS := $(GOFLAGS) -buildvcs=false
LDFLAGS := -s -w -X main.version=$(VERSION)

# Where tests, the demo and the benchmarks find what is built.
export ONERULE_BIN := $(CURDIR)/bin

as_root := sh '$(CURDIR)/test/as-root.sh'

# Packages whose tests need root: in a full run each must have passed some.
tier := onerule/bpf,onerule/localproxy,onerule/nft,onerule/daemon,onerule/daemon/fabric,onerule/daemon/network,onerule/daemon/conntrack,onerule/daemon/health,onerule/daemon/source,onerule/nft/takeover,onerule/plugin,onerule/test/netns,onerule/test/apiserver,onerule/test/invariants,onerule/test/neighbours,onerule/test/random,onerule/test/rows,onerule/test/apiproxy,onerule/test/demo,onerule/test/takeover,onerule/test/process,onerule/test/ui

.PHONY: help build setup test soak parity conformance demo bench lint clean
.NOTPARALLEL:

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/onerule (the CNI plugin) and bin/oneruled (the node daemon)
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/onerule ./plugin/onerule
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/oneruled ./daemon/oneruled

setup: ## install the Debian packages that are missing
	@sh test/setup.sh

demo: setup build ## show the main job in network namespaces of its own
	@CGO_ENABLED=0 go build -o bin/demo ./test/demo
	@$(as_root) bin/demo

test: setup build ## run all tests, as root; PKG=./nft/... runs some of them
	@if go list $(PKG) | grep -q '^onerule/test/ui$$'; then sh test/setup.sh chromium; fi
	@rm -f bin/summary
	@CGO_ENABLED=0 go build -o bin/count ./test/count
	@go vet $(PKG)
	@set -e; export ONERULE_PRIVILEGED=1; \
	if go list -deps -test $(PKG) | grep -q '^onerule/test/apiserver'; then \
		ONERULE_ETCD=$$(sh test/tools.sh test/cluster go.etcd.io/etcd/server/v3); \
		ONERULE_KUBE_APISERVER=$$(sh test/tools.sh test/cluster k8s.io/kubernetes/cmd/kube-apiserver); \
		export ONERULE_ETCD ONERULE_KUBE_APISERVER; \
	fi; \
	bin/count -summary bin/summary -tier '$(if $(filter ./...,$(PKG)),$(tier))' \
		go test -json -count=1 -p $(P) -timeout 15m -exec "$(as_root)" $(TESTFLAGS) $(PKG)

# The tests that draw clusters, changes and packets from a seed. A test alone prints as
# it goes.
soak: setup build ## compare 5,000 random steps with real packets, and 100,000 in memory, with the oracle: some 10 minutes
	@ONERULE_PRIVILEGED=1 ONERULE_SOAK=1 go test -count=1 -timeout 60m -v -run '^Test(Rules|Packets)DoWhatTheOracleSays$$' \
		-exec "$(as_root)" $(TESTFLAGS) ./test/random

# Which run make parity shows, instead of running the tests again.
IN ?=

parity: setup build ## run the tests of what kube-proxy does, and show row by row what is proven; IN=bin/parity.json shows the last run
	@CGO_ENABLED=0 go build -o bin/parity ./test/parity
ifneq ($(IN),)
	@bin/parity -in '$(IN)'
else
	@set -e; export ONERULE_PRIVILEGED=1; \
	ONERULE_ETCD=$$(sh test/tools.sh test/cluster go.etcd.io/etcd/server/v3); \
	ONERULE_KUBE_APISERVER=$$(sh test/tools.sh test/cluster k8s.io/kubernetes/cmd/kube-apiserver); \
	export ONERULE_ETCD ONERULE_KUBE_APISERVER; \
	bin/parity -save bin/parity.json \
		go test -json -count=1 -p $(P) -timeout 15m -exec "$(as_root)" $(TESTFLAGS) $$(bin/parity -packages)
endif

conformance: setup build ## run the tests of the CNI plugin, and show item by item what is proven; IN=bin/conformance.json shows the last run
	@CGO_ENABLED=0 go build -o bin/parity ./test/parity
ifneq ($(IN),)
	@bin/parity -of cni -in '$(IN)'
else
	@ONERULE_PRIVILEGED=1 bin/parity -of cni -save bin/conformance.json \
		go test -json -count=1 -p $(P) -timeout 15m -exec "$(as_root)" $(TESTFLAGS) $$(bin/parity -of cni -packages)
endif

bench: setup build ## measure, and print the figures
	@CGO_ENABLED=0 go build -o bin/bench ./test/bench
	@$(as_root) bin/bench $(BENCHFLAGS)

lint: ## run the linters of .golangci.yml over the whole tree
	@for script in .ci/run test/*.sh; do sh -n "$$script" || exit 1; done
	@lint=$$(sh test/tools.sh test/lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint) && "$$lint" run

clean: ## remove what was built
	rm -rf bin
