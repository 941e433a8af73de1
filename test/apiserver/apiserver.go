// Package apiserver runs a real etcd and kube-apiserver in a network namespace of
// a test's own: what the daemon reads in a cluster, without the cluster.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"onerule/test/control"
	"onerule/test/netns"
)

// securePort is where the API is served in the namespace.
const securePort = 6443

// How long the programs may take to be ready: about 5 s on two idle cores.
const readyTimeout = 90 * time.Second

// Options say what kind of cluster the API server believes to be in.
type Options struct {
	// ServiceCIDRs are the ranges of ClusterIPs, at most one of each family, the
	// primary one first. Empty: 10.96.0.0/16.
	ServiceCIDRs []netip.Prefix
	// Address is one that the namespace has, where clients outside it reach the
	// API, of the family of the first range. The zero address: one of the
	// documentation ranges is added to the loopback.
	Address netip.Addr
	// Args are more arguments for kube-apiserver.
	Args []string
}

// A Server is an API server with its etcd.
type Server struct {
	ns          *netns.NS
	dir         string
	address     netip.Addr
	args        []string
	programs    programs
	credentials credentials
	config      *rest.Config

	etcd, api *process
}

// Start runs an API server in a namespace and returns when it is ready. It goes
// with the test, and with the test's process however that ends.
func Start(t testing.TB, ns *netns.NS, o Options) *Server {
	t.Helper()
	netns.Privileged(t)
	s, err := Open(t.Context(), ns, t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-apiserver's last words:\n%s", s.api.lastWords())
		}
		s.Close()
	})
	return s
}

// Open is Start for programs that are no tests. State, logs and credentials are
// kept in dir.
func Open(ctx context.Context, ns *netns.NS, dir string, o Options) (*Server, error) {
	if len(o.ServiceCIDRs) == 0 {
		o.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	programs, err := findPrograms(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{ns: ns, dir: dir, address: o.Address, programs: programs}
	if err := s.ensureAddress(o.ServiceCIDRs[0].Addr().Is4()); err != nil {
		return nil, err
	}
	if s.credentials, err = newCredentials(dir, s.address, o.ServiceCIDRs); err != nil {
		return nil, err
	}
	if s.config, err = s.clientConfig(); err != nil {
		return nil, err
	}
	s.args = append(s.apiArgs(o.ServiceCIDRs), o.Args...)
	if s.etcd, err = start(ns, filepath.Join(dir, "etcd.log"), s.programs.etcd, control.EtcdArgs(filepath.Join(dir, "etcd"))...); err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Start starts the API server again after Stop, with what it had stored, and
// returns when it is ready.
func (s *Server) Start(ctx context.Context) (err error) {
	if s.api.running() {
		return errors.New("start kube-apiserver: it runs")
	}
	if s.api, err = start(s.ns, filepath.Join(s.dir, "kube-apiserver.log"), s.programs.apiserver, s.args...); err != nil {
		return err
	}
	return s.waitReady(ctx)
}

// Stop kills the API server, as a crash would: connections to it are reset. etcd
// goes on.
func (s *Server) Stop() { s.api.kill() }

// Close ends both programs.
func (s *Server) Close() {
	s.api.kill()
	s.etcd.kill()
}

// Kubeconfig gives the name of a kubeconfig file of a cluster administrator, for
// programs in the namespace or where Options.Address is reached.
func (s *Server) Kubeconfig() string { return s.credentials.adminKubeconfig }

// KubeconfigOf writes a kubeconfig for a user with groups and gives its name.
// Nobody but RBAC decides what that user may do: "system:kube-proxy" may do what
// the cluster lets every kube-proxy do.
func (s *Server) KubeconfigOf(user string, groups ...string) (string, error) {
	return s.credentials.writeKubeconfig(s.dir, s.url(), user, groups)
}

// Config gives a client configuration of a cluster administrator that works
// everywhere in this process: connections begin in the namespace.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

func (s *Server) url() string {
	return "https://" + netip.AddrPortFrom(s.address, securePort).String()
}

func (s *Server) clientConfig() (*rest.Config, error) {
	file, err := s.credentials.writeKubeconfig(s.dir, s.url(), "admin", []string{"system:masters"})
	if err != nil {
		return nil, err
	}
	s.credentials.adminKubeconfig = file
	config, err := control.ReadKubeconfig(file)
	if err != nil {
		return nil, err
	}
	// Tests read and write in bursts: the client's own limit would only slow them.
	config.QPS, config.Burst = -1, -1
	config.Dial = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = s.ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return config, nil
}

// ensureAddress gives the namespace an address to advertise, since Kubernetes
// takes no loopback address for the endpoint of its own Service.
func (s *Server) ensureAddress(ipv4 bool) error {
	if s.address.IsValid() {
		return nil
	}
	s.address = netip.MustParseAddr("2001:db8:ffff::1")
	if ipv4 {
		s.address = netip.MustParseAddr("198.51.100.1")
	}
	return s.ns.AddAddr("lo", netip.PrefixFrom(s.address, s.address.BitLen()).String())
}

func (s *Server) apiArgs(serviceCIDRs []netip.Prefix) []string {
	ranges := make([]string, 0, len(serviceCIDRs))
	for _, r := range serviceCIDRs {
		ranges = append(ranges, r.String())
	}
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		fmt.Sprintf("--secure-port=%d", securePort),
		"--bind-address=::", // both families
		"--advertise-address=" + s.address.String(),
		"--service-cluster-ip-range=" + strings.Join(ranges, ","),
		"--authorization-mode=Node,RBAC",
		// No controller makes the service accounts that pods would wait for.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
		"--cert-dir=" + s.dir,
		"--client-ca-file=" + s.credentials.ca,
		"--tls-cert-file=" + s.credentials.cert,
		"--tls-private-key-file=" + s.credentials.key,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + s.credentials.accountKey,
		"--service-account-signing-key-file=" + s.credentials.accountKey,
	}
}

// waitReady waits until the API server says that it is ready, it ends, or the
// time is up.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := rest.UnversionedRESTClientFor(unversioned(s.config))
	if err != nil {
		return fmt.Errorf("client for kube-apiserver: %w", err)
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		last := client.Get().AbsPath("/readyz").Do(ctx).Error()
		if last == nil {
			return nil
		}
		select {
		case <-s.api.ended:
			return fmt.Errorf("kube-apiserver ended before it was ready: %w:\n%s", s.api.err, s.api.lastWords())
		case <-s.etcd.ended:
			return fmt.Errorf("etcd ended: %w:\n%s", s.etcd.err, s.etcd.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %v: %w:\n%s", readyTimeout, last, s.api.lastWords())
		case <-again.C:
		}
	}
}

// programs are the paths of the executables.
type programs struct{ etcd, apiserver string }

// findPrograms takes the executables that make test built, and builds them where
// it did not: minutes the first time, from Go's cache afterwards.
func findPrograms(ctx context.Context) (programs, error) {
	p := programs{os.Getenv("ONERULE_ETCD"), os.Getenv("ONERULE_KUBE_APISERVER")}
	for _, tool := range []struct {
		path         *string
		folder, name string
	}{
		{&p.etcd, "etcd", "go.etcd.io/etcd/server/v3"},
		{&p.apiserver, "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"},
	} {
		if *tool.path != "" {
			continue
		}
		var err error
		if *tool.path, err = buildTool(ctx, tool.folder, tool.name); err != nil {
			return p, err
		}
	}
	return p, nil
}
