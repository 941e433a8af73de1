package apiserver

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"onerule/test/control"
)

// credentials are a certificate authority and the files made from it.
type credentials struct {
	authority control.Authority
	// Names of files: the authority's certificate, the server's certificate and
	// key, the key that signs service accounts' tokens.
	ca, cert, key, accountKey string
	adminKubeconfig           string
}

// newCredentials makes an authority and the server's files in dir.
func newCredentials(dir string, address netip.Addr, serviceCIDRs []netip.Prefix) (credentials, error) {
	a, err := control.NewAuthority()
	if err != nil {
		return credentials{}, err
	}
	c := credentials{
		authority: a,
		ca:        filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "server.crt"), key: filepath.Join(dir, "server.key"),
		accountKey: filepath.Join(dir, "accounts.key"),
	}
	reached := []netip.Addr{address}
	for _, r := range serviceCIDRs { // the Service default/kubernetes has the first address
		reached = append(reached, r.Masked().Addr().Next())
	}
	server := control.Server(reached...)
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert, key, err := a.Issue(server)
	if err != nil {
		return credentials{}, err
	}
	accounts, err := control.NewKey()
	if err != nil {
		return credentials{}, err
	}
	for file, text := range map[string][]byte{c.ca: a.PEM, c.cert: cert, c.key: key, c.accountKey: accounts.PEM} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return credentials{}, fmt.Errorf("write credentials: %w", err)
		}
	}
	return c, nil
}

// writeKubeconfig writes dir/NAME.kubeconfig for a user that a certificate names.
func (c credentials) writeKubeconfig(dir, url, user string, groups []string) (string, error) {
	file := filepath.Join(dir, strings.NewReplacer(":", "-", "/", "-").Replace(user)+".kubeconfig")
	if err := c.authority.WriteKubeconfig(file, url, user, groups, x509.ExtKeyUsageClientAuth); err != nil {
		return "", err
	}
	return file, nil
}

// unversioned prepares a configuration for paths that no API group has.
func unversioned(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()
	return config
}
