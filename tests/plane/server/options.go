package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/tests/plane/controllers"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/kube-openapi/pkg/common"
)

// Options are what a plane is started with.
type Options struct {
	// Dir holds etcd's data, the certificate, the admin token and the kubeconfig.
	Dir string
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// AuditLog and AuditReads are files to append to; empty for none.
	AuditLog, AuditReads string
	// UpstreamAudit is the library's own log, the one that kube-apiserver writes; nil for none.
	UpstreamAudit *genericoptions.AuditOptions
	// NativeScheduling serves scheduling.k8s.io/v1beta1 and keeps pod.spec.schedulingGroup.
	NativeScheduling bool
	// Components are the stand-ins to run; ComponentNames lists them all.
	Components []string
	// FeatureGates of the API server library, as A=true,B=false.
	FeatureGates string
	// Definitions are the OpenAPI definitions of the built-in types.
	Definitions common.GetOpenAPIDefinitions
	// Ready is called once with the address and the kubeconfig.
	Ready func(url, kubeconfig string)
}

const binderName = "binder"

// ComponentNames lists the stand-ins for controllers and scheduler.
func ComponentNames() []string { return append(controllers.Names(), binderName) }

// Check finds names of components that do not exist, and audit flags that make no sense.
func (o *Options) Check() error {
	for _, name := range o.Components {
		if !slices.Contains(ComponentNames(), name) {
			return fmt.Errorf("no component %q, there are: %s", name, strings.Join(ComponentNames(), ", "))
		}
	}
	return errors.Join(o.UpstreamAudit.Validate()...)
}

// KubeconfigPath is where the admin's kubeconfig is written.
func (o *Options) KubeconfigPath() string { return filepath.Join(o.Dir, "kubeconfig") }

func listen(port int) (net.Listener, int, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, 0, err
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, 0, fmt.Errorf("not a TCP address: %s", l.Addr())
	}
	return l, addr.Port, nil
}

func ensureDir(dir string) error { return os.MkdirAll(dir, 0o755) }
