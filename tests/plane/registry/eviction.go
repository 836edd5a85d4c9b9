package registry

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"lockstep/tests/plane/audit"
)

// EvictionREST serves pods/eviction: a delete that asks the disruption budgets first.
type EvictionREST struct {
	pods, podStatus, budgets *genericregistry.Store
}

// New is an empty object for decoding.
func (r *EvictionREST) New() runtime.Object { return &policyv1.Eviction{} }

// Destroy does nothing: the pods endpoint owns the store.
func (r *EvictionREST) Destroy() {}

// GroupVersionKind says that this subresource of a core type takes a policy type.
func (r *EvictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion says which versions of it may be sent.
func (r *EvictionREST) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion
}

// Create evicts the pod: 429 when its budget does not allow it.
func (r *EvictionREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	eviction := obj.(*policyv1.Eviction)
	if eviction.Name != "" && eviction.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	options := &metav1.DeleteOptions{}
	if eviction.DeleteOptions != nil {
		options = eviction.DeleteOptions.DeepCopy()
	}
	if options.DryRun == nil {
		options.DryRun = o.DryRun
	}
	stored, err := r.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pod := stored.(*corev1.Pod)
	audit.Before(ctx, pod)
	if err := r.askBudget(ctx, pod, isDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	if !isDryRun(options.DryRun) {
		if err := r.markEvicted(ctx, name); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	left, gone, err := r.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, options)
	if err != nil {
		return nil, err
	}
	if !gone {
		audit.After(ctx, left)
	}
	return created(), nil
}

// askBudget takes one disruption from the pod's budget. Pods that serve nothing
// (not running, or on their way out) are not asked about.
func (r *EvictionREST) askBudget(ctx context.Context, pod *corev1.Pod, dryRun bool) error {
	if Terminal(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil {
		return nil
	}
	list, err := r.budgets.List(InProcess(pod.Namespace), nil)
	if err != nil {
		return err
	}
	var matching []policyv1.PodDisruptionBudget
	for _, b := range list.(*policyv1.PodDisruptionBudgetList).Items {
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil && b.Spec.Selector != nil && selector.Matches(labels.Set(pod.Labels)) {
			matching = append(matching, b)
		}
	}
	switch len(matching) {
	case 0:
		return nil
	case 1:
		return r.take(ctx, matching[0].Name, pod, dryRun)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
	}}
}

func (r *EvictionREST) take(ctx context.Context, budget string, pod *corev1.Pod, dryRun bool) error {
	key, err := r.budgets.KeyFunc(ctx, budget)
	if err != nil {
		return err
	}
	return r.budgets.Storage.GuaranteedUpdate(ctx, key, &policyv1.PodDisruptionBudget{}, false, nil, storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
		b := in.(*policyv1.PodDisruptionBudget)
		if b.Status.ObservedGeneration < b.Generation {
			return nil, refused(10, fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name))
		}
		if b.Status.DisruptionsAllowed <= 0 {
			return nil, refused(0, fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy))
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		b.Status.DisruptedPods[pod.Name] = metav1.Now()
		return b, nil
	}), dryRun, nil)
}

func refused(retryAfterSeconds int, cause string) error {
	e := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retryAfterSeconds)
	e.ErrStatus.Details.Causes = append(e.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return e
}

func (r *EvictionREST) markEvicted(ctx context.Context, name string) error {
	mark := func(_ context.Context, _, current runtime.Object) (runtime.Object, error) {
		pod := current.DeepCopyObject().(*corev1.Pod)
		SetPodCondition(&pod.Status, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting", ObservedGeneration: pod.Generation})
		return pod, nil
	}
	_, _, err := r.podStatus.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, mark), nil, nil, false, &metav1.UpdateOptions{})
	return err
}
