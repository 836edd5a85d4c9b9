package server

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

// Priorities by which clients prefer groups and versions.
const (
	coreGroupPriority    = 18000
	builtinGroupPriority = 17000
	customGroupPriority  = 1000
	stablePriority       = 15
	betaPriority         = 9
	customPriority       = 100
)

// registerAPIServices announces group versions, built-in and custom, to the
// aggregator as local APIServices. The libraries leave that to kube-apiserver.
func registerAPIServices(aggregator *aggregatorapiserver.APIAggregator, builtin *genericapiserver.GenericAPIServer, custom *apiextensionsapiserver.CustomResourceDefinitions, loopback *clientrest.Config) error {
	client, err := aggregatorclient.NewForConfig(loopback)
	if err != nil {
		return err
	}
	registration := autoregister.NewAutoRegisterController(aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices(), client)
	for _, path := range builtin.ListedPaths() {
		if service := builtinService(path); service != nil {
			registration.AddAPIServiceToSyncOnStart(service)
		}
	}
	crds := custom.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer()
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default: // a look is due already
		}
	}
	if _, err := crds.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(_, _ any) { poke() }, DeleteFunc: func(any) { poke() },
	}); err != nil {
		return err
	}
	return aggregator.GenericAPIServer.AddPostStartHook("plane-apiservice-registration", func(h genericapiserver.PostStartHookContext) error {
		go func() {
			if !cache.WaitForCacheSync(h.Done(), crds.HasSynced) {
				return
			}
			registered := syncCustom(registration, crds.GetStore().List(), nil)
			go registration.Run(2, h.Done())
			for {
				select {
				case <-h.Done():
					return
				case <-changed:
					registered = syncCustom(registration, crds.GetStore().List(), registered)
				}
			}
		}()
		return nil
	})
}

// builtinService is the APIService of a path that serves a group version, or nil.
func builtinService(path string) *apiregistrationv1.APIService {
	if path == "/api/v1" {
		return apiService(corev1.SchemeGroupVersion, coreGroupPriority, 1)
	}
	parts := strings.Split(path, "/")
	if !strings.HasPrefix(path, "/apis/") || len(parts) != 4 {
		return nil
	}
	var priority int32 = stablePriority
	if strings.Contains(parts[3], "beta") {
		priority = betaPriority
	}
	return apiService(schema.GroupVersion{Group: parts[2], Version: parts[3]}, builtinGroupPriority, priority)
}

// syncCustom registers what the CRDs serve and takes back what they no longer do.
func syncCustom(registration autoregister.AutoAPIServiceRegistration, crds []any, registered sets.Set[schema.GroupVersion]) sets.Set[schema.GroupVersion] {
	want := sets.New[schema.GroupVersion]()
	for _, obj := range crds {
		crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Served {
				want.Insert(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
			}
		}
	}
	for gv := range want {
		registration.AddAPIServiceToSync(apiService(gv, customGroupPriority, customPriority))
	}
	for gv := range registered.Difference(want) {
		registration.RemoveAPIServiceToSync(gv.Version + "." + gv.Group)
	}
	return want
}

func apiService(gv schema.GroupVersion, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec:       apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version},
	}
}
