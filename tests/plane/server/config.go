package server

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	goruntime "runtime"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"lockstep/tests/plane/apis"
	"lockstep/tests/plane/audit"
	"lockstep/tests/plane/auth"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server/filters"
	basecompatibility "k8s.io/component-base/compatibility"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
)

// release is the Kubernetes release that the libraries are of.
const (
	releaseMajor = "1"
	releaseMinor = "37"
	release      = "v1.37.2"
)

// What kube-apiserver serves at a time unless told otherwise. The sum is what the priority levels share.
const (
	maxRequestsInFlight         = 400
	maxMutatingRequestsInFlight = 200
)

// reportedVersion makes /version say what the libraries are; they are built
// without linker stamps, which kubectl could not parse.
type reportedVersion struct {
	basecompatibility.EffectiveVersion
}

func (reportedVersion) Info() *version.Info {
	return &version.Info{
		Major: releaseMajor, Minor: releaseMinor, GitVersion: release + "+plane", GitTreeState: "clean",
		GoVersion: goruntime.Version(), Compiler: goruntime.Compiler, Platform: goruntime.GOOS + "/" + goruntime.GOARCH,
	}
}

// genericConfig is what the three servers share, up to authentication.
func genericConfig(o *Options, listener net.Listener, port int, creds *credentials, log *audit.Log, slow *slow) (*genericapiserver.Config, error) {
	c := genericapiserver.NewConfig(apis.Codecs)
	c.EffectiveVersion = reportedVersion{basecompatibility.NewEffectiveVersionFromString(releaseMajor+"."+releaseMinor, "", "")}
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = maxRequestsInFlight, maxMutatingRequestsInFlight
	c.ShutdownDelayDuration = 0
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	c.ExternalAddress = fmt.Sprintf("127.0.0.1:%d", port)
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return slow.delays(log.Handler(genericapiserver.DefaultBuildHandlerChain(slow.refuses(handler), c)))
	}

	if err := o.UpstreamAudit.ApplyTo(c); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}

	serving := genericoptions.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort, serving.Listener = net.IPv4(127, 0, 0, 1), port, listener
	serving.ServerCert.CertKey.CertFile, serving.ServerCert.CertKey.KeyFile = creds.certFile, creds.keyFile
	serving.HTTP2MaxStreamsPerConnection = 2000
	if err := serving.WithLoopback().ApplyTo(&c.SecureServing, &c.LoopbackClientConfig); err != nil {
		return nil, fmt.Errorf("serving: %w", err)
	}
	c.LoopbackClientConfig.QPS, c.LoopbackClientConfig.Burst = -1, 0

	admin, err := dynamiccertificates.NewDynamicCAContentFromFile("admin", creds.adminCertFile)
	if err != nil {
		return nil, fmt.Errorf("the admin's certificate: %w", err)
	}
	c.SecureServing.ClientCA = admin
	certificates := x509.NewDynamic(admin.VerifyOptions, x509.CommonNameUserConversion)
	tokens := auth.Tokens{Fixed: map[string]user.Info{
		creds.token:                        &user.DefaultInfo{Name: adminName, Groups: []string{user.SystemPrivilegedGroup}},
		c.LoopbackClientConfig.BearerToken: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}},
	}}
	// Tokens first: a test that plays somebody else has the admin's kubeconfig with another token.
	c.Authentication.Authenticator = group.NewAuthenticatedGroupAdder(union.NewFailOnError(bearertoken.New(tokens), certificates, anonymous.NewAuthenticator(nil)))

	definitions := mergedDefinitions(o.Definitions, apiextensionsopenapi.GetOpenAPIDefinitions, aggregatoropenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(apis.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title, c.OpenAPIConfig.Info.Version = "Kubernetes", release
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIV3Config.Info.Title, c.OpenAPIV3Config.Info.Version = "Kubernetes", release
	return c, nil
}

func mergedDefinitions(sources ...common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		out := map[string]common.OpenAPIDefinition{}
		for _, source := range sources {
			maps.Copy(out, source(ref))
		}
		return out
	}
}
