package docs_test

// wordsOfOthers are what the pages name of Kubernetes, of the kernel, of other programs and of
// their own examples. One that no page has fails.
func wordsOfOthers() []string {
	return []string{
		// Kubernetes, kubeadm, its plugins
		"--allocate-node-cidrs", "system-node-critical", "proxy: {disabled: true}", "ipMasq", "cni0",
		// nftables, iptables, the kernel
		"-udp", "-sctp", "iptables-legacy-save", "iptables-legacy-restore", "connect",
		// Prometheus
		"rule_files", "up",
		// examples
		"eth0", "config.yaml", "0.0.0.0:10249", `onerule: "yes"`,
	}
}
