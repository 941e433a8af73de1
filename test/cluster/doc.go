// Package cluster runs a real Kubernetes cluster on one machine, without Docker: an
// etcd, a kube-apiserver, controllers and a scheduler, and nodes that are namespaces,
// each with a real kubelet and containerd. What connects pods and serves Services is
// chosen: onerule, or kube-proxy with the reference plugins.
//
// A test asks for one, runs commands on its nodes, and stops and starts its programs:
//
//	c := cluster.Start(t, cluster.Options{Nodes: 2})
//	out, err := c.Kubectl(ctx, "get", "pods", "-A").CombinedOutput()
//	out, err = c.Node("n1").Command(ctx, "oneruled", "status").CombinedOutput()
//	err = c.Control().Stop(ctx, "kube-apiserver")
//
// Everything is in namespaces of its own, so that clusters can run side by side and
// nothing on the machine's network changes. The control plane's PID namespace holds
// those of the nodes: when its first process ends, the kernel ends everything.
package cluster
