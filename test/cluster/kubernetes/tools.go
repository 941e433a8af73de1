//go:build tools

// Package kubernetes pins what is built of Kubernetes: the programs stand in go.mod
// as tools, the tests can't, since they are no program.
package kubernetes

import _ "k8s.io/kubernetes/test/e2e"
