#!/bin/sh
# Makes a cluster of kind, in Docker, with onerule as its network and Service proxy:
#
#   sh install/kind/up.sh [NAME]      kind delete cluster --name NAME ends it
set -eu
name=${1:-onerule}
cd "$(dirname "$0")/../.."

for tool in docker kind kubectl; do
	command -v "$tool" >/dev/null || {
		echo "up: $tool is missing" >&2
		exit 1
	}
done
[ -s bin/onerule-image.tar ] || make image

# Nodes are not Ready before they have a network: nothing is waited for here.
kind create cluster --name "$name" --config install/kind/cluster.yaml
kind load image-archive bin/onerule-image.tar --name "$name"

in_cluster() {
	kubectl --context "kind-$name" "$@"
}

# Nobody translates the address of the Service kubernetes yet. The name of the first node is
# known to Docker's name server, and stands in the server's certificate.
in_cluster --namespace kube-system create configmap onerule-apiserver \
	--from-literal=KUBERNETES_SERVICE_HOST="$name-control-plane" \
	--from-literal=KUBERNETES_SERVICE_PORT=6443
in_cluster apply -f install/onerule.yaml
in_cluster --namespace kube-system rollout status daemonset/oneruled --timeout=2m
in_cluster wait --for=condition=Ready nodes --all --timeout=2m
in_cluster --namespace kube-system rollout status deployment/coredns --timeout=2m
