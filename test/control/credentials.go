// Package control has what a control plane of tests begins with: an authority and the
// certificates that it issues, kubeconfigs, and what etcd is told.
package control

import (
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
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A Key is one with its text in PEM.
type Key struct {
	crypto.Signer
	PEM []byte
}

// NewKey makes a key.
func NewKey() (Key, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(signer)
	if err != nil {
		return Key{}, fmt.Errorf("encode key: %w", err)
	}
	return Key{signer, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})}, nil
}

// An Authority issues certificates.
type Authority struct {
	Key  Key
	PEM  []byte // its certificate
	cert *x509.Certificate
}

// NewAuthority makes one that has issued nothing.
func NewAuthority() (a Authority, err error) {
	if a.Key, err = NewKey(); err != nil {
		return a, err
	}
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if a.PEM, err = a.sign(a.cert, a.Key.Public()); err != nil {
		return a, err
	}
	block, _ := pem.Decode(a.PEM)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return a, fmt.Errorf("read back the authority's certificate: %w", err)
	}
	return a, nil
}

// Issue gives a certificate for what a template says, and a new key for it, in PEM.
func (a Authority) Issue(template *x509.Certificate) (cert, key []byte, err error) {
	k, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	cert, err = a.sign(template, k.Public())
	return cert, k.PEM, err
}

// sign fills in serial number and validity: a year, for clusters that stay.
func (a Authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(1, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.Key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Server is the template of an API server's certificate: the names and addresses by which
// it is reached, on loopback and at some more.
func Server(more ...netip.Addr) *x509.Certificate {
	cert := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, a := range more {
		cert.IPAddresses = append(cert.IPAddresses, a.AsSlice())
	}
	return cert
}

// WriteKubeconfig writes one for a user of an API server, who has a certificate of their
// own with these usages.
func (a Authority) WriteKubeconfig(file, url, user string, groups []string, usages ...x509.ExtKeyUsage) error {
	cert, key, err := a.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: usages})
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: a.PEM}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return nil
}

// ReadKubeconfig gives what a client is made of.
func ReadKubeconfig(file string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	return config, nil
}
