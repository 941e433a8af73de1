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
tier := onerule/bpf,onerule/localproxy,onerule/nft,onerule/daemon,onerule/daemon/fabric,onerule/daemon/network,onerule/daemon/conntrack,onerule/daemon/health,onerule/daemon/source,onerule/nft/takeover,onerule/plugin,onerule/test/netns,onerule/test/apiserver,onerule/test/cluster,onerule/test/invariants,onerule/test/neighbours,onerule/test/random,onerule/test/rows,onerule/test/apiproxy,onerule/test/demo,onerule/test/docs,onerule/test/takeover,onerule/test/process,onerule/test/ui

.PHONY: help build image dockerfile manifests setup test vm soak parity conformance demo bench e2e cluster-up cluster-down cluster-test lint clean
.NOTPARALLEL:

help: ## show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/onerule (the CNI plugin) and bin/oneruled (the node daemon)
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/onerule ./plugin/onerule
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/oneruled ./daemon/oneruled

# What the image is called: a reference with a registry, if it is to be pushed to one.
IMAGE ?= onerule:dev

image: setup build ## build bin/onerule-image.tar, the image of a container, without Docker; IMAGE=NAME:TAG names it
	@go run ./install/image -bin bin -version '$(VERSION)' -name '$(IMAGE)' -o bin/onerule-image.tar

dockerfile: setup build ## build install/Dockerfile with buildah, from images made of Debian's packages, and compare it with make image
	@sh test/setup.sh buildah mmdebstrap
	@ONERULE_DOCKERFILE=1 go test -count=1 -v -timeout 20m -exec "$(as_root)" -run '^TestTheDockerfileIsBuilt$$' ./install/image

manifests: ## make the manifests of install/ from its chart
	@helm=$$(sh test/tools.sh test/helm helm.sh/helm/v4/cmd/helm) && sh install/manifests.sh "$$helm"

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
		ONERULE_ETCD=$$(sh test/tools.sh test/cluster/etcd go.etcd.io/etcd/server/v3); \
		ONERULE_KUBE_APISERVER=$$(sh test/tools.sh test/cluster/kubernetes k8s.io/kubernetes/cmd/kube-apiserver); \
		export ONERULE_ETCD ONERULE_KUBE_APISERVER; \
	fi; \
	bin/count -summary bin/summary -tier '$(if $(filter ./...,$(PKG)),$(tier))' \
		go test -json -count=1 -p $(P) -timeout 15m -exec "$(as_root)" $(TESTFLAGS) $(PKG)

# Which of Debian's kernels make vm takes: the newest that begins so.
KERNEL ?= 6.12

vm: setup build ## run the tests of one package on another kernel, in a virtual machine: make vm KERNEL=6.1 PKG=./bpf
	@sh test/setup.sh qemu-system-x86_64
	@sh test/vm/vm.sh '$(KERNEL)' '$(PKG)' $(TESTFLAGS)

# The tests that are the better the longer they run: those that kill the plugin at random
# moments, or change files while others read them, and those that draw clusters, changes
# and packets from a seed. A test alone prints as it goes.
soak_plugin := ^Test(Kill|GCSparesWhatComesWhileItRuns|C52SweepsWhileAddsAreKilled)$$
soak_install := ^Test(C17D7TheBinaryIsReplacedWhileItRunsAndNoCallFails|D8AListIsNeverHalfWritten)$$
soak_random := ^Test(Rules|Packets)DoWhatTheOracleSays$$
soaking = ONERULE_PRIVILEGED=1 ONERULE_SOAK=1 go test -count=1 -timeout 60m -v -exec "$(as_root)" $(TESTFLAGS)

soak: setup build ## kill the plugin 700 times; compare 5,000 random steps with real packets, and 100,000 in memory, with the oracle: some 15 minutes
	@$(soaking) -run '$(soak_plugin)' ./plugin
	@$(soaking) -run '$(soak_install)' ./install
	@$(soaking) -run '$(soak_random)' ./test/random

# Which run make parity shows, instead of running the tests again.
IN ?=

parity: setup build ## run the tests of what kube-proxy does, and show row by row what is proven; IN=bin/parity.json shows the last run
	@CGO_ENABLED=0 go build -o bin/parity ./test/parity
ifneq ($(IN),)
	@bin/parity -in '$(IN)'
else
	@set -e; export ONERULE_PRIVILEGED=1; \
	ONERULE_ETCD=$$(sh test/tools.sh test/cluster/etcd go.etcd.io/etcd/server/v3); \
	ONERULE_KUBE_APISERVER=$$(sh test/tools.sh test/cluster/kubernetes k8s.io/kubernetes/cmd/kube-apiserver); \
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

# Upstream's tests in a real cluster: which of them (regular expressions), IP families
# (ipv4, dual, dual6: IPv6 first, ipv6), nodes, tests at a time, what connects pods (WITH=kube-proxy), and
# BASELINE=1 to run them with kube-proxy, too, or BASELINE=show.
FOCUS    ?=
SKIP     ?=
FAMILY   ?= ipv4
NODES    ?= 2
PROCS    ?= 8
WITH     ?= onerule
BASELINE ?=
E2EFLAGS ?=

cluster_pieces = sh test/setup.sh runc conntrack && CGO_ENABLED=0 go build -o bin/e2e ./test/e2e

e2e: image ## run upstream's [sig-network] tests in a real cluster: FOCUS= SKIP= FAMILY=ipv4|dual|dual6|ipv6 NODES= PROCS= BASELINE=1
	@$(cluster_pieces)
	@$(as_root) bin/e2e run --ip-family '$(FAMILY)' --nodes '$(NODES)' --procs '$(PROCS)' --with '$(WITH)' \
		$(if $(FOCUS),--focus '$(FOCUS)') $(if $(SKIP),--skip '$(SKIP)') \
		$(if $(BASELINE),--baseline '$(if $(filter show,$(BASELINE)),show,run)') $(E2EFLAGS)

cluster-up: image ## start a real cluster that stays, without Docker: FAMILY= NODES= WITH=onerule|onerule-binaries|kube-proxy
	@$(cluster_pieces)
	@$(as_root) bin/e2e build
	@$(as_root) bin/e2e up --ip-family '$(FAMILY)' --nodes '$(NODES)' --with '$(WITH)'

cluster-down: ## end that cluster
	@CGO_ENABLED=0 go build -o bin/e2e ./test/e2e
	@$(as_root) bin/e2e down

cluster-test: image ## run the tests of migration and of a cluster's life in real clusters: some half an hour; TESTFLAGS='-run Life'
	@$(cluster_pieces)
	@$(as_root) bin/e2e build
	@ONERULE_PRIVILEGED=1 ONERULE_CLUSTER=1 go test -count=1 -timeout 60m -v -exec "$(as_root)" $(TESTFLAGS) ./test/life

lint: ## run the linters of .golangci.yml over the whole tree
	@for script in .ci/run test/*.sh install/*.sh install/kind/*.sh; do sh -n "$$script" || exit 1; done
	@lint=$$(sh test/tools.sh test/lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint) && "$$lint" run

clean: ## remove what was built
	rm -rf bin
