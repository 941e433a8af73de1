package cluster

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"

	"onerule/test/control"
)

const apiPort = 6443

// users are who has a kubeconfig, beside the nodes: the name of its file, that of the
// user, and a group.
var users = []struct{ file, name, group string }{
	{"admin", "admin", "system:masters"},
	{"kube-controller-manager", "system:kube-controller-manager", ""},
	{"kube-scheduler", "system:kube-scheduler", ""},
	{"kube-proxy", "system:kube-proxy", ""},
	{"oneruled", "onerule:oneruled", ""},
}

// makeCredentials writes an authority, what the API server needs, and a kubeconfig for
// each user, into DIR/credentials.
func (c *Cluster) makeCredentials() error {
	dir := filepath.Join(c.dir, "credentials")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	a, err := control.NewAuthority()
	if err != nil {
		return err
	}
	if err := write(dir, "ca.crt", a.PEM); err != nil {
		return err
	}
	if err := write(dir, "ca.key", a.Key.PEM); err != nil { // the controllers sign with it
		return err
	}
	accounts, err := control.NewKey()
	if err != nil {
		return err
	}
	if err := write(dir, "accounts.key", accounts.PEM); err != nil {
		return err
	}
	for name, template := range map[string]*x509.Certificate{
		"kube-apiserver": c.serverCertificate(),
		"front-proxy":    {Subject: pkix.Name{CommonName: "front-proxy"}},
	} {
		if err := issueFiles(a, dir, name, template); err != nil {
			return err
		}
	}
	for _, u := range users {
		if err := c.writeKubeconfig(a, u.file, u.name, u.group); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := c.writeKubeconfig(a, n.name, "system:node:"+n.name, "system:nodes"); err != nil {
			return err
		}
	}
	return nil
}

// serverCertificate has all names and addresses by which the API server is reached.
func (c *Cluster) serverCertificate() *x509.Certificate {
	var reached []netip.Addr
	for i, a := range c.control.Addresses() {
		reached = append(reached, a, apiService(c.settings.Family.serviceRanges()[i]))
	}
	return control.Server(reached...)
}

// APIServer gives the address and port of the API server on the nodes' network.
func (c *Cluster) APIServer() netip.AddrPort {
	return netip.AddrPortFrom(c.control.Addresses()[0], apiPort)
}

func (c *Cluster) writeKubeconfig(a control.Authority, file, user, group string) error {
	var groups []string
	if group != "" {
		groups = []string{group}
	}
	return a.WriteKubeconfig(c.KubeconfigOf(file), "https://"+c.APIServer().String(), user, groups, clientsAndServers()...)
}

// clientsAndServers are the usages of certificates here: kubelets and the API server call
// each other.
func clientsAndServers() []x509.ExtKeyUsage {
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
}

// clientConfig reads a kubeconfig for clients that dial in their own way.
func clientConfig(file string, dial func(context.Context, string, string) (net.Conn, error)) (*rest.Config, error) {
	config, err := control.ReadKubeconfig(file)
	if err != nil {
		return nil, err
	}
	// Tests read and write in bursts: the client's own limit would only slow them.
	config.QPS, config.Burst = -1, -1
	config.Dial = dial
	return config, nil
}

// issueFiles writes NAME.crt and NAME.key.
func issueFiles(a control.Authority, dir, name string, template *x509.Certificate) error {
	template.ExtKeyUsage = clientsAndServers()
	cert, key, err := a.Issue(template)
	if err != nil {
		return err
	}
	if err := write(dir, name+".crt", cert); err != nil {
		return err
	}
	return write(dir, name+".key", key)
}

func write(dir, name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
