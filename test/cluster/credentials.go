package cluster

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
	a, err := newAuthority()
	if err != nil {
		return err
	}
	if err := write(dir, "ca.crt", a.pem); err != nil {
		return err
	}
	if err := write(dir, "ca.key", a.key.pem); err != nil { // the controllers sign with it
		return err
	}
	accounts, err := newKey()
	if err != nil {
		return err
	}
	if err := write(dir, "accounts.key", accounts.pem); err != nil {
		return err
	}
	for name, template := range map[string]*x509.Certificate{
		"kube-apiserver": c.serverCertificate(),
		"front-proxy":    {Subject: pkix.Name{CommonName: "front-proxy"}},
	} {
		if err := a.issueFiles(dir, name, template); err != nil {
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
	cert := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for i, a := range c.control.Addresses() {
		cert.IPAddresses = append(cert.IPAddresses, a.AsSlice(), apiService(c.settings.Family.serviceRanges()[i]).AsSlice())
	}
	return cert
}

// APIServer gives the address and port of the API server on the nodes' network.
func (c *Cluster) APIServer() netip.AddrPort {
	return netip.AddrPortFrom(c.control.Addresses()[0], apiPort)
}

func (c *Cluster) writeKubeconfig(a authority, file, user, group string) error {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: user}}
	if group != "" {
		template.Subject.Organization = []string{group}
	}
	cert, key, err := a.issue(template)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + c.APIServer().String(), CertificateAuthorityData: a.pem}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, c.KubeconfigOf(file)); err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return nil
}

// clientConfig reads a kubeconfig for clients that dial in their own way.
func clientConfig(file string, dial func(context.Context, string, string) (net.Conn, error)) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	// Tests read and write in bursts: the client's own limit would only slow them.
	config.QPS, config.Burst = -1, -1
	config.Dial = dial
	return config, nil
}

// A key is one with its text in PEM.
type key struct {
	crypto.Signer
	pem []byte
}

func newKey() (key, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return key{}, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(signer)
	if err != nil {
		return key{}, fmt.Errorf("encode key: %w", err)
	}
	return key{signer, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})}, nil
}

// An authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  key
	pem  []byte // the certificate
}

func newAuthority() (a authority, err error) {
	if a.key, err = newKey(); err != nil {
		return a, err
	}
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if a.pem, err = a.sign(a.cert, a.key.Public()); err != nil {
		return a, err
	}
	block, _ := pem.Decode(a.pem)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return a, fmt.Errorf("read back the authority's certificate: %w", err)
	}
	return a, nil
}

// issue gives a certificate for clients and servers, and a new key for it, in PEM.
func (a authority) issue(template *x509.Certificate) (cert, pem []byte, err error) {
	k, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	cert, err = a.sign(template, k.Public())
	return cert, k.pem, err
}

// issueFiles writes NAME.crt and NAME.key.
func (a authority) issueFiles(dir, name string, template *x509.Certificate) error {
	cert, key, err := a.issue(template)
	if err != nil {
		return err
	}
	if err := write(dir, name+".crt", cert); err != nil {
		return err
	}
	return write(dir, name+".key", key)
}

// sign fills in serial number and validity: a year, for clusters that stay.
func (a authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(1, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func write(dir, name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
