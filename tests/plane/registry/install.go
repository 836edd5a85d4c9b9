package registry

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"lockstep/tests/plane/apis"
)

// Stores are the registries that the stand-ins in this process write to without HTTP.
type Stores struct {
	pods, podStatus, budgetStatus *genericregistry.Store
	// Binding binds pods.
	Binding *BindingREST
}

// Install serves the catalog and its subresources.
func Install(server *genericapiserver.GenericAPIServer, base storagebackend.Config, decider Decider, tokens authenticator.Request, nativeScheduling bool) (*Stores, error) {
	served := groups{}
	stores := map[string]*genericregistry.Store{}
	for _, r := range Catalog(nativeScheduling) {
		store, status, err := newStore(base, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
		endpoint := &REST{store, r}
		served.put(r.GroupVersion, r.Name, endpoint)
		stores[r.Name] = store
		if status != nil {
			served.put(r.GroupVersion, r.Name+"/status", &StatusREST{status})
			stores[r.Name+"/status"] = status
		}
		switch r.Name {
		case "namespaces":
			served.put(r.GroupVersion, r.Name, &NamespaceREST{endpoint})
			finalize := *store
			finalize.UpdateStrategy = finalizeStrategy{newStrategy(r)}
			served.put(r.GroupVersion, "namespaces/finalize", &StatusREST{&finalize})
		case "events": // the same registry, seen through events.k8s.io/v1
			served.put(eventsv1.SchemeGroupVersion, r.Name, endpoint)
		}
	}
	out := &Stores{pods: stores["pods"], podStatus: stores["pods/status"], budgetStatus: stores["poddisruptionbudgets/status"]}
	out.Binding = &BindingREST{out.pods}
	core := corev1.SchemeGroupVersion
	served.put(core, "pods/binding", out.Binding)
	served.put(core, "bindings", &LegacyBindingREST{out.Binding})
	served.put(core, "pods/eviction", &EvictionREST{out.pods, out.podStatus, stores["poddisruptionbudgets"]})
	served.put(core, "pods/log", notImplemented{})
	served.put(core, "pods/exec", notImplemented{})
	served.put(core, "serviceaccounts/token", &TokenREST{stores["serviceaccounts"], out.pods, stores["nodes"]})
	for gvr, review := range reviews(decider, tokens) {
		served.put(gvr.GroupVersion(), gvr.Resource, review)
	}
	return out, served.install(server)
}

// groups is what is served: group -> version -> resource.
type groups map[string]map[string]map[string]rest.Storage

func (g groups) put(gv schema.GroupVersion, name string, storage rest.Storage) {
	if g[gv.Group] == nil {
		g[gv.Group] = map[string]map[string]rest.Storage{}
	}
	if g[gv.Group][gv.Version] == nil {
		g[gv.Group][gv.Version] = map[string]rest.Storage{}
	}
	g[gv.Group][gv.Version][name] = storage
}

func (g groups) install(server *genericapiserver.GenericAPIServer) error {
	var infos []*genericapiserver.APIGroupInfo
	for group, versions := range g {
		info := genericapiserver.NewDefaultAPIGroupInfo(group, apis.Scheme, runtime.NewParameterCodec(apis.Scheme), apis.Codecs)
		info.VersionedResourcesStorageMap = versions
		if group == "" {
			if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
				return err
			}
			continue
		}
		var prioritized []schema.GroupVersion
		for _, gv := range info.PrioritizedVersions {
			if versions[gv.Version] != nil {
				prioritized = append(prioritized, gv)
			}
		}
		info.PrioritizedVersions = prioritized
		infos = append(infos, &info)
	}
	return server.InstallAPIGroups(infos...)
}

// notImplemented answers 501 for subresources that need a kubelet's own server.
type notImplemented struct{}

func (notImplemented) New() runtime.Object { return &corev1.Pod{} }
func (notImplemented) Destroy()            {}
func (notImplemented) ConnectMethods() []string {
	return []string{http.MethodGet, http.MethodPost}
}
func (notImplemented) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }
func (notImplemented) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not implemented: the test plane does not connect to kubelets", http.StatusNotImplemented)
	}), nil
}
