package controllers

import (
	"context"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"lockstep/tests/plane/registry"
)

// follow feeds the collector from an informer.
func (g *collector) follow(informer cache.SharedIndexInformer, gvk schema.GroupVersionKind, k kind) {
	g.mu.Lock()
	g.kinds[gvk] = k
	g.mu.Unlock()
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { g.upsert(k.resource, obj.(metav1.Object)) },
		UpdateFunc: func(_, obj any) { g.upsert(k.resource, obj.(metav1.Object)) },
		DeleteFunc: func(obj any) {
			if m, ok := unwrap(obj).(metav1.Object); ok {
				g.remove(m.GetUID())
			}
		},
	})
}

// followBuiltins follows every built-in resource: pods and nodes in the caches
// that others share, the rest by metadata only.
func (g *collector) followBuiltins(ctx context.Context) []cache.InformerSynced {
	var synced []cache.InformerSynced
	byMetadata := metadatainformer.NewSharedInformerFactory(g.Metadata, 0)
	for _, r := range registry.Catalog(g.NativeScheduling) {
		gvr := r.GroupVersionResource()
		var informer cache.SharedIndexInformer
		switch r.Name {
		case "events", "namespaces": // own nothing, and are owned by nothing
			continue
		case "pods":
			informer = g.Informers.Core().V1().Pods().Informer()
		case "nodes":
			informer = g.Informers.Core().V1().Nodes().Informer()
		default:
			informer = byMetadata.ForResource(gvr).Informer()
		}
		g.follow(informer, r.GroupVersionKind(), kind{gvr, !r.ClusterScoped})
		synced = append(synced, informer.HasSynced)
	}
	byMetadata.Start(ctx.Done())
	return synced
}

// followCustomResources starts and stops a metadata informer with each CRD.
func (g *collector) followCustomResources(ctx context.Context) {
	var mu sync.Mutex
	running := map[types.UID]context.CancelFunc{}
	see := func(obj any) {
		crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		mu.Lock()
		defer mu.Unlock()
		if !ok || !established(crd) || running[crd.UID] != nil {
			return
		}
		running[crd.UID] = g.followCRD(ctx, crd)
	}
	_, _ = g.CRDs.Apiextensions().V1().CustomResourceDefinitions().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		DeleteFunc: func(obj any) {
			crd, ok := unwrap(obj).(*apiextensionsv1.CustomResourceDefinition)
			mu.Lock()
			defer mu.Unlock()
			if ok && running[crd.UID] != nil {
				running[crd.UID]()
				delete(running, crd.UID)
			}
		},
	})
}

func (g *collector) followCRD(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) context.CancelFunc {
	ctx, cancel := context.WithCancel(ctx)
	for _, v := range crd.Spec.Versions {
		if !v.Storage || !v.Served {
			continue
		}
		gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: v.Name, Resource: crd.Spec.Names.Plural}
		k := kind{gvr, crd.Spec.Scope == apiextensionsv1.NamespaceScoped}
		for _, other := range crd.Spec.Versions { // owners may name any version
			g.mu.Lock()
			g.kinds[schema.GroupVersionKind{Group: crd.Spec.Group, Version: other.Name, Kind: crd.Spec.Names.Kind}] = k
			g.mu.Unlock()
		}
		informer := metadatainformer.NewFilteredMetadataInformer(g.Metadata, gvr, "", 0, cache.Indexers{}, nil).Informer()
		g.follow(informer, schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}, k)
		go informer.RunWithContext(ctx)
	}
	return cancel
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
			return true
		}
	}
	return false
}
