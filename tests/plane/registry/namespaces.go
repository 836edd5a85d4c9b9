package registry

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

func namespaces() *Resource {
	return &Resource{
		GroupVersion: corev1.SchemeGroupVersion, Name: "namespaces", Singular: "namespace", Kind: "Namespace",
		ClusterScoped: true, status: true, short: []string{"ns"}, table: namespaceTable,
		validName: utilvalidation.IsDNS1123Label,
		prepareCreate: func(obj runtime.Object) {
			ns := obj.(*corev1.Namespace)
			ns.Status.Phase = corev1.NamespaceActive
			ns.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
		},
		prepareUpdate: func(obj, old runtime.Object) {
			obj.(*corev1.Namespace).Spec.Finalizers = old.(*corev1.Namespace).Spec.Finalizers
		},
		attributes: func(obj runtime.Object) fields.Set {
			return fields.Set{"status.phase": string(obj.(*corev1.Namespace).Status.Phase)}
		},
	}
}

// NamespaceREST deletes in two steps: the first call marks the namespace, the
// namespace controller empties it, releases it and calls again.
type NamespaceREST struct{ *REST }

// Delete marks the namespace terminating, or removes it once it has no finalizers.
func (n *NamespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := n.Store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if o.Preconditions != nil && o.Preconditions.UID != nil && *o.Preconditions.UID != ns.UID {
		return nil, false, conflict("namespaces", name, "uid precondition failed")
	}
	if !ns.DeletionTimestamp.IsZero() {
		if len(ns.Spec.Finalizers) != 0 {
			return ns, false, nil
		}
		return n.Store.Delete(ctx, name, validate, o)
	}
	if validate != nil {
		if err := validate(ctx, ns.DeepCopy()); err != nil {
			return nil, false, err
		}
	}
	key, err := n.Store.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	out := &corev1.Namespace{}
	err = n.Store.Storage.GuaranteedUpdate(ctx, key, out, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		live := in.(*corev1.Namespace)
		if live.DeletionTimestamp.IsZero() {
			live.DeletionTimestamp = ptr.To(metav1.Now())
		}
		live.Status.Phase = corev1.NamespaceTerminating
		return live, nil
	}), isDryRun(o.DryRun), nil)
	return out, false, err
}

// DeleteReturnsDeletedObject makes the answer the namespace, not a Status.
func (n *NamespaceREST) DeleteReturnsDeletedObject() bool { return true }

func isDryRun(options []string) bool { return len(options) > 0 }

func conflict(resource, name, msg string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: resource}, name, errors.New(msg))
}
