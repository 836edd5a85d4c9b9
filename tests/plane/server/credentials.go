package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
)

// credentials are the server's certificate and the admin's token. They are kept
// in the folder, so that a restart changes nothing for clients.
type credentials struct {
	certFile, keyFile string
	token             string
}

func ensureCredentials(dir string) (*credentials, error) {
	c := &credentials{certFile: filepath.Join(dir, "apiserver.crt"), keyFile: filepath.Join(dir, "apiserver.key")}
	if _, err := os.Stat(c.certFile); errors.Is(err, os.ErrNotExist) {
		cert, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost", "kubernetes.default.svc"})
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		if err := errors.Join(os.WriteFile(c.keyFile, key, 0o600), os.WriteFile(c.certFile, cert, 0o644)); err != nil {
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

// writeKubeconfig writes the admin's kubeconfig.
func (c *credentials) writeKubeconfig(path, server string) error {
	ca, err := os.ReadFile(c.certFile)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["plane"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: c.token}
	config.Contexts["plane"] = &clientcmdapi.Context{Cluster: "plane", AuthInfo: "admin"}
	config.CurrentContext = "plane"
	return clientcmd.WriteToFile(*config, path)
}
