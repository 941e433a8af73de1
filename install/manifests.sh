#!/bin/sh
# Makes the manifests of this folder from its chart, whose templates are the only place where
# they are written:
#
#   sh install/manifests.sh HELM [FOLDER]     FOLDER gets the files instead of this one
set -eu
helm=$1
here=$(dirname "$0")
to=${2:-$here}

render() {
	"$helm" template onerule "$here/chart" --namespace kube-system "$@"
}

# Helm puts an empty line before each document, and its own name for where it came from.
tidy() {
	awk '/^---$/ && !begun { begun = 1; next } /^# Source: / { next } /^$/ { empty = 1; next } { if (empty && !/^---$/) print ""; empty = 0; print }'
}

made() {
	echo "# Made from install/chart by make manifests: a change belongs there."
}

{
	made
	cat <<'TEXT'
#
#   kubectl apply -f install/onerule.yaml
#
# Without kube-proxy, say first where the API server is, by an address that nodes reach by
# themselves and that its certificate has:
#
#   kubectl -n kube-system create configmap onerule-apiserver \
#     --from-literal=KUBERNETES_SERVICE_HOST=192.0.2.1 --from-literal=KUBERNETES_SERVICE_PORT=6443
#
# The image is what make image builds: it has to be on each node, or in a registry of yours,
# with its name below.
TEXT
	render | tidy
} >"$to/onerule.yaml"
{
	made
	cat <<'TEXT'
#
# Takes onerule off the nodes, after kubectl delete -f install/onerule.yaml. With values of your
# own, have the chart make it of them, as docs/install.md says. When all pods say in their log
# that everything is gone:
#
#   kubectl delete -f install/uninstall.yaml

TEXT
	render --set uninstall=true | tidy
} >"$to/uninstall.yaml"
for part in rbac rbac-network; do
	{
		made
		render --show-only "templates/$part.yaml" | tidy
	} >"$to/$part.yaml"
done
