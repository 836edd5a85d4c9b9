package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// UpdatePodStatus changes a pod's status without HTTP, so without admission and
// audit. It is not found when the pod is another one than meant; change returns
// whether there is anything to write.
func (s *Stores) UpdatePodStatus(pod *corev1.Pod, change func(*corev1.Pod) bool) error {
	transform := func(_ context.Context, _, current runtime.Object) (runtime.Object, error) {
		next := current.DeepCopyObject().(*corev1.Pod)
		if pod.UID != "" && next.UID != pod.UID {
			return nil, apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
		}
		if !change(next) {
			return current, nil // the store sees no difference and writes nothing
		}
		return next, nil
	}
	_, _, err := s.podStatus.Update(InProcess(pod.Namespace), pod.Name, rest.DefaultUpdatedObjectInfo(nil, transform),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

// DeletePod deletes a pod without HTTP. The options should name its UID.
func (s *Stores) DeletePod(namespace, name string, o metav1.DeleteOptions) error {
	_, _, err := s.pods.Delete(InProcess(namespace), name, rest.ValidateAllObjectFunc, &o)
	return err
}

// UpdateBudgetStatus writes a disruption budget's status unless the budget has changed since it was read.
func (s *Stores) UpdateBudgetStatus(read *policyv1.PodDisruptionBudget, status policyv1.PodDisruptionBudgetStatus) error {
	transform := func(_ context.Context, _, current runtime.Object) (runtime.Object, error) {
		next := current.DeepCopyObject().(*policyv1.PodDisruptionBudget)
		if next.ResourceVersion != read.ResourceVersion {
			return nil, apierrors.NewConflict(policyv1.Resource("poddisruptionbudgets"), read.Name, nil)
		}
		status.Conditions = next.Status.Conditions
		next.Status = status
		return next, nil
	}
	_, _, err := s.budgetStatus.Update(InProcess(read.Namespace), read.Name, rest.DefaultUpdatedObjectInfo(nil, transform),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}
