package server

import (
	"crypto"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// credentials are the server's certificate, and the admin's token and client
// certificate (some clients send no tokens). They are kept in the folder, so
// that a restart changes nothing for clients.
type credentials struct {
	certFile, keyFile string
	// adminCertFile is its own authority: no other certificate is accepted.
	adminCertFile, adminKeyFile string
	token                       string
}

const adminName = "admin"

func ensureCredentials(dir string) (*credentials, error) {
	c := &credentials{
		certFile: filepath.Join(dir, "apiserver.crt"), keyFile: filepath.Join(dir, "apiserver.key"),
		adminCertFile: filepath.Join(dir, "admin.crt"), adminKeyFile: filepath.Join(dir, "admin.key"),
	}
	if _, err := os.Stat(c.certFile); errors.Is(err, os.ErrNotExist) {
		cert, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost", "kubernetes.default.svc"})
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		if err := errors.Join(os.WriteFile(c.keyFile, key, 0o600), os.WriteFile(c.certFile, cert, 0o644), c.makeAdminCert()); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	tokenFile := filepath.Join(dir, "token")
	token, err := os.ReadFile(tokenFile)
	if errors.Is(err, os.ErrNotExist) {
		token = []byte(rand.Text())
		err = os.WriteFile(tokenFile, token, 0o600)
	}
	c.token = string(token)
	return c, err
}

func (c *credentials) makeAdminCert() error {
	text, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("the admin's key: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(text)
	if err != nil {
		return fmt.Errorf("the admin's key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fmt.Errorf("the admin's key does not sign: %T", key)
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: adminName, Organization: []string{user.SystemPrivilegedGroup}}, signer)
	if err != nil {
		return fmt.Errorf("the admin's certificate: %w", err)
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: cert.Raw})
	return errors.Join(os.WriteFile(c.adminKeyFile, text, 0o600), os.WriteFile(c.adminCertFile, encoded, 0o644))
}

// writeKubeconfig writes the admin's kubeconfig.
func (c *credentials) writeKubeconfig(path, server string) error {
	ca, err := os.ReadFile(c.certFile)
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(c.adminCertFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(c.adminKeyFile)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["plane"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[adminName] = &clientcmdapi.AuthInfo{Token: c.token, ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["plane"] = &clientcmdapi.Context{Cluster: "plane", AuthInfo: adminName}
	config.CurrentContext = "plane"
	return clientcmd.WriteToFile(*config, path)
}
