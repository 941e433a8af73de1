package control

// EtcdArgs are those of an etcd that listens on loopback only and keeps its data in a folder.
func EtcdArgs(dir string) []string {
	return []string{
		"--data-dir=" + dir,
		"--unsafe-no-fsync", // no machine fails here
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380",
		"--log-level=warn",
	}
}
