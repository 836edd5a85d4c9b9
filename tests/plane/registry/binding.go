package registry

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"lockstep/tests/plane/audit"
)

// BindingREST serves pods/binding.
type BindingREST struct{ store *genericregistry.Store }

// New is an empty object for decoding.
func (r *BindingREST) New() runtime.Object { return &corev1.Binding{} }

// Destroy does nothing: the pods endpoint owns the store.
func (r *BindingREST) Destroy() {}

// NamespaceScoped says that bindings live in namespaces.
func (r *BindingREST) NamespaceScoped() bool { return true }

// Create binds the pod to the node that the Binding names.
func (r *BindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*corev1.Binding)
	switch {
	case !ok:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding: %T", obj))
	case b.Name != "" && name != b.Name:
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	case b.Target.Name == "" || b.Target.Kind != "" && b.Target.Kind != "Node":
		return nil, apierrors.NewBadRequest("target must name a Node")
	}
	if validate != nil {
		if err := validate(ctx, b.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.Bind(ctx, name, b, isDryRun(o.DryRun)); err != nil {
		return nil, err
	}
	return created(), nil
}

// Bind assigns the pod to a node, once: 409 when it is bound, gated or deleting.
func (r *BindingREST) Bind(ctx context.Context, name string, b *corev1.Binding, dryRun bool) error {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return err
	}
	var preconditions *storage.Preconditions
	if b.UID != "" {
		preconditions = &storage.Preconditions{UID: &b.UID}
	}
	bound := &corev1.Pod{}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, bound, false, preconditions, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		pod := in.(*corev1.Pod)
		audit.Before(ctx, pod)
		return pod, assign(pod, b)
	}), dryRun, nil)
	if err == nil {
		audit.After(ctx, bound)
		return nil
	}
	pods := schema.GroupResource{Resource: "pods"}
	err = storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, pods, name), pods, name)
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		err = conflict("pods/binding", name, err.Error())
	}
	return err
}

func assign(pod *corev1.Pod, b *corev1.Binding) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	for k, v := range b.Annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
	}
	SetPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation})
	// ClearingNominatedNodeNameAfterBinding, beta since 1.34.
	pod.Status.NominatedNodeName = ""
	return nil
}

// LegacyBindingREST serves POST /namespaces/NS/bindings.
type LegacyBindingREST struct{ *BindingREST }

// GetSingularName names one of them.
func (r *LegacyBindingREST) GetSingularName() string { return "binding" }

// Create binds the pod of the Binding's own name.
func (r *LegacyBindingREST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	m, err := apimeta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	return r.BindingREST.Create(ctx, m.GetName(), obj, validate, o)
}

func created() *metav1.Status {
	return &metav1.Status{Status: metav1.StatusSuccess, Code: 201}
}
