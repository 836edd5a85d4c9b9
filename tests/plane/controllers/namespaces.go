package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// namespaces gives every namespace its default service account, and empties and
// releases those that are being deleted.
type namespaces struct {
	Deps
	ctx context.Context
}

func startNamespaces(ctx context.Context, d Deps) {
	n := &namespaces{d, ctx}
	queue := newQueue[string](50*time.Millisecond, 2*time.Second)
	onAny(d.Informers.Core().V1().Namespaces().Informer(), func(obj any) {
		if ns, ok := obj.(*corev1.Namespace); ok {
			queue.Add(ns.Name)
		}
	})
	work(ctx, 2, queue, n.sync)
}

func (n *namespaces) sync(name string) error {
	ns, err := n.Informers.Core().V1().Namespaces().Lister().Get(name)
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		_, err := n.Client.CoreV1().ServiceAccounts(name).Create(n.ctx, account, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	left, err := n.empty(name)
	if err != nil {
		return err
	}
	if left > 0 { // look again, with back-off
		return apierrors.NewConflict(corev1.Resource("namespaces"), name, nil)
	}
	if len(ns.Spec.Finalizers) > 0 {
		released := ns.DeepCopy()
		released.Spec.Finalizers = nil
		if _, err := n.Client.CoreV1().Namespaces().Finalize(n.ctx, released, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return n.Client.CoreV1().Namespaces().Delete(n.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ns.UID}})
}

// empty deletes what is in the namespace and returns how many objects were there.
func (n *namespaces) empty(namespace string) (int, error) {
	lists, err := discovery.ServerPreferredNamespacedResources(n.Client.Discovery())
	if err != nil && len(lists) == 0 {
		return 0, err
	}
	left := 0
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return 0, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "deletecollection") || gv.Group == "events.k8s.io" {
				continue
			}
			resource := n.Metadata.Resource(gv.WithResource(r.Name)).Namespace(namespace)
			items, err := resource.List(n.ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) { // its definition has gone since it was discovered
				continue
			}
			if err != nil {
				return 0, err
			}
			if len(items.Items) == 0 {
				continue
			}
			left += len(items.Items)
			background := metav1.DeletePropagationBackground
			if err := resource.DeleteCollection(n.ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return 0, err
			}
		}
	}
	return left, nil
}
