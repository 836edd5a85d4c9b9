// Command plane runs a test control plane: embedded etcd, an API server made of
// the official API machinery libraries, and small stand-ins for the controllers.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	apiextensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/klog/v2"
	aggregatorv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"

	builtinopenapi "lockstep/tests/plane/openapi"
)

type options struct {
	dir              string
	port             int
	nativeScheduling bool
	featureGates     string
	gcCRDs           string
	controllers      string
	hollow           hollowOptions
	rbac             bool
	exitWithParent   bool
}

func main() {
	o := &options{}
	fs := flag.NewFlagSet("plane", flag.ExitOnError)
	klog.InitFlags(fs)
	fs.StringVar(&o.dir, "dir", "plane-data", "data folder: etcd, certificates, token, kubeconfig")
	fs.IntVar(&o.port, "port", 0, "API port on 127.0.0.1 (0: a free one)")
	fs.BoolVar(&o.exitWithParent, "exit-with-parent", false, "end when the process that started this one is gone")
	fs.BoolVar(&o.nativeScheduling, "native-scheduling", false, "serve scheduling.k8s.io/v1beta1 workloads and podgroups and keep pod.spec.schedulingGroup")
	fs.StringVar(&o.featureGates, "feature-gates", "", "A=true,B=false gates of the API server library")
	fs.StringVar(&o.gcCRDs, "gc-crds", "*", "custom resources the garbage collector follows: group/version/resource,... or * for all")
	fs.StringVar(&o.controllers, "controllers", "gc,namespace,binder,kubelet,pdb", "controllers to run")
	fs.BoolVar(&o.rbac, "rbac", false, "enforce RBAC (admin token stays all-powerful)")
	o.hollow.addFlags(fs)
	_ = fs.Parse(os.Args[1:])
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300) // two cores: spend memory rather than CPU
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.exitWithParent {
		go func() {
			for parent := os.Getppid(); os.Getppid() == parent; {
				time.Sleep(100 * time.Millisecond)
			}
			stop()
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}()
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "plane:", err)
		os.Exit(1)
	}
}

// reportedVersion makes /version say what the libraries are (they are built without linker stamps).
type reportedVersion struct {
	basecompatibility.EffectiveVersion
}

func (reportedVersion) Info() *version.Info {
	return &version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2+plane", GitTreeState: "clean", GoVersion: goruntime.Version(), Compiler: "gc", Platform: "linux/amd64"}
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func startEtcd(dir string) (*embed.Etcd, string, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.LogLevel = "error"
	client, _ := url.Parse(fmt.Sprintf("http://127.0.0.1:%d", freePort()))
	peer, _ := url.Parse(fmt.Sprintf("http://127.0.0.1:%d", freePort()))
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.QuotaBackendBytes = 8 << 30
	cfg.TickMs, cfg.ElectionMs = 10, 100 // a single node elects itself at once
	cfg.WarningApplyDuration = time.Second
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = 2000, 500 // keep little raft log in memory
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, "", err
	}
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		return nil, "", fmt.Errorf("etcd not ready")
	}
	return e, client.String(), nil
}

func persisted(path string, gen func() []byte) ([]byte, error) {
	if b, err := os.ReadFile(path); err == nil {
		return b, nil
	}
	b := gen()
	return b, os.WriteFile(path, b, 0o600)
}

func randomToken() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return []byte(hex.EncodeToString(b))
}

func getDefs(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	out := map[string]common.OpenAPIDefinition{}
	for _, f := range []common.GetOpenAPIDefinitions{builtinopenapi.Definitions, apiextensionsopenapi.GetOpenAPIDefinitions, aggregatoropenapi.GetOpenAPIDefinitions} {
		for k, v := range f(ref) {
			out[k] = v
		}
	}
	return out
}

type fixedOpts struct {
	base  storagebackend.Config
	codec runtime.Codec
}

func (f fixedOpts) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	cfg := f.base
	cfg.Codec = f.codec
	return generic.RESTOptions{StorageConfig: cfg.ForResource(gr), Decorator: genericregistry.StorageWithCacher(), EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1, ResourcePrefix: "/" + gr.Group + "/" + gr.Resource, StorageObjectCountTracker: cfg.StorageObjectCountTracker}, nil
}

func run(ctx context.Context, o *options) error {
	t0 := time.Now()
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	if o.featureGates != "" {
		if err := utilfeature.DefaultMutableFeatureGate.Set(o.featureGates); err != nil {
			return err
		}
	}
	etcd, etcdURL, err := startEtcd(o.dir)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer etcd.Close()

	// --- credentials ---
	crt, key := filepath.Join(o.dir, "apiserver.crt"), filepath.Join(o.dir, "apiserver.key")
	if _, err := os.Stat(crt); err != nil {
		c, k, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.ParseIP("127.0.0.1")}, []string{"localhost", "kubernetes.default.svc"})
		if err != nil {
			return err
		}
		if err := os.WriteFile(crt, c, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(key, k, 0o600); err != nil {
			return err
		}
	}
	token, err := persisted(filepath.Join(o.dir, "token"), randomToken)
	if err != nil {
		return err
	}

	// --- generic config shared by the three servers ---
	gc := genericapiserver.NewConfig(codecs)
	gc.EffectiveVersion = reportedVersion{basecompatibility.NewEffectiveVersionFromString("1.37", "", "")}
	gc.MaxRequestsInFlight, gc.MaxMutatingRequestsInFlight = 0, 0
	gc.ShutdownDelayDuration = 0
	gc.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	gc.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", o.port))
	if err != nil {
		return err
	}
	o.port = listener.Addr().(*net.TCPAddr).Port
	gc.ExternalAddress = fmt.Sprintf("127.0.0.1:%d", o.port)
	gc.EnableProfiling = true

	serving := genericoptions.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort = net.ParseIP("127.0.0.1"), o.port
	serving.Listener = listener
	serving.ServerCert.CertKey.CertFile, serving.ServerCert.CertKey.KeyFile = crt, key
	serving.HTTP2MaxStreamsPerConnection = 2000
	if err := serving.WithLoopback().ApplyTo(&gc.SecureServing, &gc.LoopbackClientConfig); err != nil {
		return fmt.Errorf("serving: %w", err)
	}
	loopbackToken := gc.LoopbackClientConfig.BearerToken
	gc.LoopbackClientConfig.QPS, gc.LoopbackClientConfig.Burst = -1, 0

	tokens := authenticator.TokenFunc(func(_ context.Context, t string) (*authenticator.Response, bool, error) {
		switch {
		case t == strings.TrimSpace(string(token)):
			return &authenticator.Response{User: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
		case t == loopbackToken:
			return &authenticator.Response{User: &user.DefaultInfo{Name: user.APIServerUser, UID: "loopback", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
		case strings.HasPrefix(t, "sa:"): // sa:<namespace>:<name> stands for a service account
			if p := strings.Split(t, ":"); len(p) == 3 {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "system:serviceaccount:" + p[1] + ":" + p[2], Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + p[1]}}}, true, nil
			}
		}
		return nil, false, nil
	})
	gc.Authentication.Authenticator = group.NewAuthenticatedGroupAdder(union.New(bearertoken.New(tokens), anonymous.NewAuthenticator(nil)))
	lateRBAC := &rbacAuthorizer{}
	var authz authorizer.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	if o.rbac {
		authz = lateRBAC
	}
	gc.Authorization.Authorizer = authz
	gc.RuleResolver = authorizerfactory.NewAlwaysAllowAuthorizer()

	namer := openapinamer.NewDefinitionNamer(scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme)
	gc.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(getDefs, namer)
	gc.OpenAPIConfig.Info.Title, gc.OpenAPIConfig.Info.Version = "Kubernetes", "v1.37.2"
	gc.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(getDefs, namer)
	gc.OpenAPIV3Config.Info.Title, gc.OpenAPIV3Config.Info.Version = "Kubernetes", "v1.37.2"

	base := *storagebackend.NewDefaultConfig("/registry", nil)
	base.Transport.ServerList = []string{etcdURL}
	base.StorageObjectCountTracker = gc.StorageObjectCountTracker
	etcdOpts := genericoptions.NewEtcdOptions(&base)

	// --- clients and informers over the loopback ---
	pb := rest.CopyConfig(gc.LoopbackClientConfig)
	pb.ContentType, pb.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(pb)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(gc.LoopbackClientConfig)
	if err != nil {
		return err
	}
	inf := informers.NewSharedInformerFactory(client, 0)
	lateRBAC.start(inf, o.rbac)

	// --- admission ---
	adm := genericoptions.NewAdmissionOptions()
	registerPriorityPlugin(adm, inf, client)
	if err := adm.ApplyTo(gc, inf, client, dyn, utilfeature.DefaultFeatureGate, gc.EffectiveVersion); err != nil {
		return fmt.Errorf("admission: %w", err)
	}

	// --- 1. CRD server (innermost) ---
	resCfg := serverstorage.NewResourceConfig()
	resCfg.EnableVersions(apiextensionsv1.SchemeGroupVersion, aggregatorv1.SchemeGroupVersion)
	gc.MergedResourceConfig = resCfg
	derive := func(cf serializer.CodecFactory, keepHooks bool) *genericapiserver.RecommendedConfig {
		c := *gc
		c.Serializer = cf
		if !keepHooks {
			c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
		}
		return &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: inf}
	}
	extCfg := derive(apiextensionsapiserver.Codecs, false)
	extCfg.RESTOptionsGetter = fixedOpts{base, apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)}
	ext, err := (&apiextensionsapiserver.Config{GenericConfig: extCfg, ExtraConfig: apiextensionsapiserver.ExtraConfig{
		CRDRESTOptionsGetter: apiextensionsoptions.NewCRDRESTOptionsGetter(*etcdOpts, nil, gc.StorageObjectCountTracker),
		MasterCount:          1,
		ServiceResolver:      webhook.NewDefaultServiceResolver(),
		AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, gc.LoopbackClientConfig, gc.TracerProvider),
	}}).Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) })))
	if err != nil {
		return fmt.Errorf("apiextensions: %w", err)
	}

	// --- 2. built-in types ---
	coreCfg := derive(codecs, true)
	core, err := coreCfg.Complete().New("plane", ext.GenericAPIServer)
	if err != nil {
		return fmt.Errorf("core: %w", err)
	}
	stores, err := installBuiltins(core, base, o)
	if err != nil {
		return fmt.Errorf("builtins: %w", err)
	}

	// --- 3. aggregator (outermost): one discovery and one OpenAPI for all ---
	aggCfg := derive(aggregatorscheme.Codecs, false)
	aggCfg.RESTOptionsGetter = fixedOpts{base, aggregatorscheme.Codecs.LegacyCodec(aggregatorv1.SchemeGroupVersion)}
	aggCfg.SkipOpenAPIInstallation = true
	agg, err := (&aggregatorapiserver.Config{GenericConfig: aggCfg, ExtraConfig: aggregatorapiserver.ExtraConfig{
		ServiceResolver: aggregatorapiserver.NewClusterIPServiceResolver(inf.Core().V1().Services().Lister()),
		DisableRemoteAvailableConditionController: true,
	}}).Complete().NewWithDelegate(core)
	if err != nil {
		return fmt.Errorf("aggregator: %w", err)
	}
	if err := registerAPIServices(agg, core, ext, gc.LoopbackClientConfig); err != nil {
		return err
	}
	agg.GenericAPIServer.AddPostStartHookOrDie("plane-bootstrap", func(h genericapiserver.PostStartHookContext) error {
		inf.Start(h.Done())
		return bootstrap(h, client)
	})
	agg.GenericAPIServer.AddPostStartHookOrDie("plane-controllers", func(h genericapiserver.PostStartHookContext) error {
		go startControllers(h, o, gc.LoopbackClientConfig, client, dyn, inf, ext.Informers, stores)
		return nil
	})

	agg.GenericAPIServer.ShutdownTimeout = time.Second // do not wait a minute for open watches
	prepared, err := agg.PrepareRun()
	if err != nil {
		return err
	}
	if err := writeKubeconfig(o, crt, strings.TrimSpace(string(token))); err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			if b, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil && string(b) == "ok" {
				fmt.Printf("plane: ready on https://127.0.0.1:%d after %.1fs, kubeconfig %s\n", o.port, time.Since(t0).Seconds(), filepath.Join(o.dir, "kubeconfig"))
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return prepared.Run(ctx)
}

func writeKubeconfig(o *options, crt, token string) error {
	ca, err := os.ReadFile(crt)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.dir, "kubeconfig"), []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: plane
  cluster: {server: "https://127.0.0.1:%d", certificate-authority-data: %s}
users:
- name: admin
  user: {token: %q}
contexts:
- name: plane
  context: {cluster: plane, user: admin}
current-context: plane
`, o.port, b64(ca), token)), 0o600)
}
