package controllers

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

func (g *collector) client(resource schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	if namespace == "" {
		return g.Collector.Resource(resource)
	}
	return g.Collector.Resource(resource).Namespace(namespace)
}

// edit patches an object's metadata with what f makes of its live state; nil means nothing to do.
func (g *collector) edit(n *node, f func(m *metav1.PartialObjectMetadata) map[string]any) error {
	ctx := context.Background()
	live, err := g.client(n.resource, n.namespace).Get(ctx, n.name, metav1.GetOptions{})
	if err != nil || live.UID != n.uid {
		return err
	}
	change := f(live)
	if change == nil {
		return nil
	}
	change["resourceVersion"], change["uid"] = live.ResourceVersion, live.UID
	patch, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return err
	}
	_, err = g.client(n.resource, n.namespace).Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (g *collector) dropFinalizer(n *node, finalizer string) error {
	return g.edit(n, func(m *metav1.PartialObjectMetadata) map[string]any {
		kept := []string{}
		for _, f := range m.Finalizers {
			if f != finalizer {
				kept = append(kept, f)
			}
		}
		if len(kept) == len(m.Finalizers) {
			return nil
		}
		return map[string]any{"finalizers": kept}
	})
}

func (g *collector) dropOwners(n *node, drop func(metav1.OwnerReference) bool) error {
	return g.edit(n, func(m *metav1.PartialObjectMetadata) map[string]any {
		kept := []metav1.OwnerReference{}
		for _, o := range m.OwnerReferences {
			if !drop(o) {
				kept = append(kept, o)
			}
		}
		if len(kept) == len(m.OwnerReferences) {
			return nil
		}
		return map[string]any{"ownerReferences": kept}
	})
}
