package apiserver

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
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// credentials are a certificate authority and the files made from it.
type credentials struct {
	authority authority
	// Names of files: the authority's certificate, the server's certificate and
	// key, the key that signs service accounts' tokens.
	ca, cert, key, accountKey string
	adminKubeconfig           string
}

// newCredentials makes an authority and the server's files in dir.
func newCredentials(dir string, address netip.Addr, serviceCIDRs []netip.Prefix) (credentials, error) {
	a, err := newAuthority()
	if err != nil {
		return credentials{}, err
	}
	c := credentials{
		authority: a,
		ca:        filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "server.crt"), key: filepath.Join(dir, "server.key"),
		accountKey: filepath.Join(dir, "accounts.key"),
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, address.AsSlice()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, r := range serviceCIDRs { // the Service default/kubernetes has the first address
		server.IPAddresses = append(server.IPAddresses, r.Masked().Addr().Next().AsSlice())
	}
	cert, key, err := a.issue(server)
	if err != nil {
		return credentials{}, err
	}
	_, accountKey, err := newKey()
	if err != nil {
		return credentials{}, err
	}
	for file, text := range map[string][]byte{c.ca: a.pem, c.cert: cert, c.key: key, c.accountKey: accountKey} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return credentials{}, fmt.Errorf("write credentials: %w", err)
		}
	}
	return c, nil
}

// writeKubeconfig writes dir/NAME.kubeconfig for a user that a certificate names.
func (c credentials) writeKubeconfig(dir, url, user string, groups []string) (string, error) {
	cert, key, err := c.authority.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: c.authority.pem}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user}
	config.CurrentContext = "test"
	file := filepath.Join(dir, strings.NewReplacer(":", "-", "/", "-").Replace(user)+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return file, nil
}

func loadKubeconfig(file string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	return config, nil
}

// unversioned prepares a configuration for paths that no API group has.
func unversioned(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()
	return config
}

// An authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte // the certificate
}

func newAuthority() (authority, error) {
	key, _, err := newKey()
	if err != nil {
		return authority{}, err
	}
	a := authority{key: key, cert: &x509.Certificate{
		Subject:               pkix.Name{CommonName: "test authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}}
	if a.pem, err = a.sign(a.cert, key.Public()); err != nil {
		return authority{}, err
	}
	block, _ := pem.Decode(a.pem)
	if a.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return authority{}, fmt.Errorf("read back the authority's certificate: %w", err)
	}
	return a, nil
}

// issue gives a certificate and a new key for it, in PEM.
func (a authority) issue(template *x509.Certificate) (cert, key []byte, err error) {
	signer, key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	cert, err = a.sign(template, signer.Public())
	return cert, key, err
}

// sign fills in serial number and validity, a day: longer than any test.
func (a authority) sign(template *x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// newKey gives a key, also in PEM.
func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
