package cluster

import (
	"path/filepath"

	"onerule/test/cluster/pid1"
	"onerule/test/control"
)

// controlCommands are the pieces of the control plane.
func (c *Cluster) controlCommands() map[string]pid1.Command {
	env := []string{"PATH=" + c.control.path(), "HOME=/tmp"}
	command := func(program string, args ...string) pid1.Command {
		return pid1.Command{Args: append([]string{c.pieces.Program(program)}, args...), Env: env}
	}
	return map[string]pid1.Command{
		"etcd":                    command("etcd", control.EtcdArgs(filepath.Join(c.dir, "etcd"))...),
		"kube-apiserver":          command("kube-apiserver", c.apiServerArgs()...),
		"kube-controller-manager": command("kube-controller-manager", c.controllerArgs()...),
		"kube-scheduler":          command("kube-scheduler", c.schedulerArgs()...),
	}
}

func (c *Cluster) credential(name string) string { return filepath.Join(c.dir, "credentials", name) }

func (c *Cluster) apiServerArgs() []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--secure-port=6443",
		"--bind-address=" + c.settings.Family.any(),
		"--advertise-address=" + c.APIServer().Addr().String(),
		"--service-cluster-ip-range=" + commas(c.settings.Family.serviceRanges()),
		// Names of nodes are known nowhere.
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--cert-dir=" + filepath.Join(c.dir, "control"),
		"--client-ca-file=" + c.credential("ca.crt"),
		"--tls-cert-file=" + c.credential("kube-apiserver.crt"),
		"--tls-private-key-file=" + c.credential("kube-apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.credential("accounts.key"),
		"--service-account-signing-key-file=" + c.credential("accounts.key"),
		// Aggregated API servers are tested, too.
		"--requestheader-client-ca-file=" + c.credential("ca.crt"),
		"--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.credential("front-proxy.crt"),
		"--proxy-client-key-file=" + c.credential("front-proxy.key"),
		"--max-requests-inflight=2000",
		"--max-mutating-requests-inflight=1000",
	}
}

// as are the arguments of a client that also serves.
func (c *Cluster) as(user string) []string {
	file := c.KubeconfigOf(user)
	return []string{
		"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file,
		"--leader-elect=false",
		"--cert-dir=" + filepath.Join(c.dir, "control"),
	}
}

func (c *Cluster) controllerArgs() []string {
	return append(c.as("kube-controller-manager"),
		"--service-account-private-key-file="+c.credential("accounts.key"),
		"--root-ca-file="+c.credential("ca.crt"),
		"--use-service-account-credentials=true",
		"--cluster-signing-cert-file="+c.credential("ca.crt"),
		"--cluster-signing-key-file="+c.credential("ca.key"),
		// Node objects are made with their ranges.
		"--allocate-node-cidrs=false",
		"--cluster-cidr="+commas(c.settings.Family.clusterRanges()),
		"--service-cluster-ip-range="+commas(c.settings.Family.serviceRanges()),
		"--flex-volume-plugin-dir="+filepath.Join(c.dir, "control", "volumes"),
		"--kube-api-qps=100", "--kube-api-burst=200",
	)
}

func (c *Cluster) schedulerArgs() []string { return c.as("kube-scheduler") }
