package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"lockstep/tests/plane/admission"
	"lockstep/tests/plane/apis"
	"lockstep/tests/plane/audit"
	"lockstep/tests/plane/auth"
	"lockstep/tests/plane/registry"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	aggregatorv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
)

// plane is a control plane under construction.
type plane struct {
	options   *Options
	config    *genericapiserver.Config
	storage   storagebackend.Config
	rbac      *auth.RBAC
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	informers informers.SharedInformerFactory
}

// Run serves until the context ends.
func Run(ctx context.Context, o *Options) error {
	if o.Definitions == nil {
		return errors.New("built without OpenAPI definitions: use build.sh, or run openapi/generate.sh first")
	}
	if err := o.Check(); err != nil {
		return err
	}
	if o.FeatureGates != "" {
		if err := utilfeature.DefaultMutableFeatureGate.Set(o.FeatureGates); err != nil {
			return err
		}
	}
	if err := ensureDir(o.Dir); err != nil {
		return err
	}
	creds, err := ensureCredentials(o.Dir)
	if err != nil {
		return err
	}
	log, err := audit.Open(o.AuditLog, o.AuditReads)
	if err != nil {
		return err
	}
	etcd, etcdURL, err := startEtcd(o.Dir)
	if err != nil {
		return err
	}
	defer etcd.Close()
	listener, port, err := listen(o.Port)
	if err != nil {
		return err
	}
	slow := newSlow(o.Dir)
	go slow.follow(ctx)
	config, err := genericConfig(o, listener, port, creds, log, slow)
	if err != nil {
		return err
	}
	p := &plane{options: o, config: config}
	p.storage = *storagebackend.NewDefaultConfig("/registry", nil)
	p.storage.Transport.ServerList = []string{etcdURL}
	p.storage.StorageObjectCountTracker = config.StorageObjectCountTracker
	if err := p.connect(log); err != nil {
		return err
	}
	prepared, err := p.assemble(port)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d", port)
	if err := creds.writeKubeconfig(o.KubeconfigPath(), url); err != nil {
		return err
	}
	go p.announce(ctx, url)
	return prepared.Run(ctx)
}

// connect makes the clients over the loopback, and what needs them: priority and
// fairness, the authorizer and admission.
func (p *plane) connect(log *audit.Log) error {
	protobuf := clientrest.CopyConfig(p.config.LoopbackClientConfig)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	var err error
	if p.client, err = kubernetes.NewForConfig(protobuf); err != nil {
		return err
	}
	if p.dynamic, err = dynamic.NewForConfig(p.config.LoopbackClientConfig); err != nil {
		return err
	}
	p.informers = informers.NewSharedInformerFactory(p.client, 0)
	p.config.FlowControl = flowcontrol.New(p.informers, p.client.FlowcontrolV1(), p.config.MaxRequestsInFlight+p.config.MaxMutatingRequestsInFlight)
	p.rbac = auth.NewRBAC(p.informers)
	p.config.Authorization.Authorizer = audit.Authorizer{Authorizer: p.rbac, Log: log}
	p.config.RuleResolver = p.rbac
	if err := admission.Apply(p.config, p.informers, p.client, p.dynamic); err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	return nil
}

// derive is the shared configuration for one of the servers. Post-start hooks
// of admission run once, in the server that keeps them.
func (p *plane) derive(codecs serializer.CodecFactory, keepHooks bool) *genericapiserver.RecommendedConfig {
	c := *p.config
	c.Serializer = codecs
	if !keepHooks {
		c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	}
	return &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: p.informers}
}

// assemble chains the servers: the aggregator asks the built-in types, they ask
// custom resources, which answer 404 for the rest.
func (p *plane) assemble(port int) (interface{ Run(context.Context) error }, error) {
	enabled := serverstorage.NewResourceConfig()
	enabled.EnableVersions(apiextensionsv1.SchemeGroupVersion, aggregatorv1.SchemeGroupVersion)
	p.config.MergedResourceConfig = enabled
	custom, err := p.customResources()
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	builtin, err := p.derive(apis.Codecs, true).Complete().New("plane", custom.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("built-in types: %w", err)
	}
	stores, err := registry.Install(builtin, p.storage, p.rbac, p.config.Authentication.Authenticator, p.options.NativeScheduling)
	if err != nil {
		return nil, fmt.Errorf("built-in types: %w", err)
	}
	aggregator, err := p.aggregator(builtin)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	if err := registerAPIServices(aggregator, builtin, custom, p.config.LoopbackClientConfig); err != nil {
		return nil, err
	}
	server := aggregator.GenericAPIServer
	server.AddPostStartHookOrDie("plane-bootstrap", func(h genericapiserver.PostStartHookContext) error {
		return bootstrap(h, p.client, port)
	})
	server.AddPostStartHookOrDie("plane-controllers", func(h genericapiserver.PostStartHookContext) error {
		return p.startComponents(h, custom, stores)
	})
	server.ShutdownTimeout = time.Second // do not wait a minute for open watches
	return aggregator.PrepareRun()
}

func (p *plane) customResources() (*apiextensionsapiserver.CustomResourceDefinitions, error) {
	config := p.derive(apiextensionsapiserver.Codecs, false)
	config.RESTOptionsGetter = versionedOptions{p.storage, apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)}
	etcdOptions := genericoptions.NewEtcdOptions(&p.storage)
	notFound := http.HandlerFunc(http.NotFound)
	return (&apiextensionsapiserver.Config{GenericConfig: config, ExtraConfig: apiextensionsapiserver.ExtraConfig{
		CRDRESTOptionsGetter: apiextensionsoptions.NewCRDRESTOptionsGetter(*etcdOptions, nil, p.config.StorageObjectCountTracker),
		MasterCount:          1,
		ServiceResolver:      webhook.NewDefaultServiceResolver(),
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, p.config.LoopbackClientConfig, p.config.TracerProvider),
	}}).Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
}

func (p *plane) aggregator(delegate *genericapiserver.GenericAPIServer) (*aggregatorapiserver.APIAggregator, error) {
	config := p.derive(aggregatorscheme.Codecs, false)
	config.RESTOptionsGetter = versionedOptions{p.storage, aggregatorscheme.Codecs.LegacyCodec(aggregatorv1.SchemeGroupVersion)}
	config.SkipOpenAPIInstallation = true
	return (&aggregatorapiserver.Config{GenericConfig: config, ExtraConfig: aggregatorapiserver.ExtraConfig{
		ServiceResolver: aggregatorapiserver.NewClusterIPServiceResolver(p.informers.Core().V1().Services().Lister()),
		DisableRemoteAvailableConditionController: true,
	}}).Complete().NewWithDelegate(delegate)
}

// versionedOptions store the servers' own types (CRDs, APIServices) as JSON.
type versionedOptions struct {
	base  storagebackend.Config
	codec runtime.Codec
}

func (v versionedOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	cfg := v.base
	cfg.Codec = v.codec
	return generic.RESTOptions{
		StorageConfig: cfg.ForResource(gr), Decorator: genericregistry.StorageWithCacher(), EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1, ResourcePrefix: "/" + gr.Group + "/" + gr.Resource, StorageObjectCountTracker: cfg.StorageObjectCountTracker,
	}, nil
}

// announce calls Ready once the server is.
func (p *plane) announce(ctx context.Context, url string) {
	_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		body, err := p.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil && string(body) == "ok", nil
	})
	if ctx.Err() == nil {
		p.options.Ready(url, p.options.KubeconfigPath())
	}
}
