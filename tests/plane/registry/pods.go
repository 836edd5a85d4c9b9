package registry

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	podvalidation "lockstep/tests/plane/validation"
)

// podStrategy adds graceful deletion to the common strategy.
type podStrategy struct{ strategy }

// CheckGracefulDelete decides how long a pod lingers; 0 makes the registry remove
// it at once, as it does with pods that no kubelet holds.
func (podStrategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, o *metav1.DeleteOptions) bool {
	if o == nil {
		return false
	}
	pod := obj.(*corev1.Pod)
	period := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0)
	if o.GracePeriodSeconds != nil {
		period = *o.GracePeriodSeconds
	}
	if pod.Spec.NodeName == "" || Terminal(pod) {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	o.GracePeriodSeconds = &period
	return true
}

// Terminal says whether the pod has ended for good.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func pods(nativeScheduling bool) *Resource {
	return &Resource{
		GroupVersion: corev1.SchemeGroupVersion, Name: "pods", Singular: "pod", Kind: "Pod",
		status: true, generation: true, short: []string{"po"}, categories: []string{"all"}, table: podTable,
		prepareCreate: func(obj runtime.Object) {
			pod := obj.(*corev1.Pod)
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qosClass(pod)}
			if !nativeScheduling {
				pod.Spec.SchedulingGroup = nil
			}
			if len(pod.Spec.SchedulingGates) > 0 && pod.Spec.NodeName == "" {
				SetPodCondition(&pod.Status, corev1.PodCondition{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
					Reason:  corev1.PodReasonSchedulingGated,
					Message: "Scheduling is blocked due to non-empty scheduling gates",
				})
			}
		},
		validName: func(string) []string { return nil }, // Pod checks it, with the rest
		validate:  func(obj runtime.Object) field.ErrorList { return podvalidation.Pod(obj.(*corev1.Pod)) },
		validateUpdate: func(obj, old runtime.Object) field.ErrorList {
			return podvalidation.PodUpdate(obj.(*corev1.Pod), old.(*corev1.Pod))
		},
		warnings:      func(obj runtime.Object) []string { return podvalidation.PodWarnings(obj.(*corev1.Pod)) },
		prepareUpdate: func(obj, old runtime.Object) { dropGatedCondition(obj.(*corev1.Pod), old.(*corev1.Pod)) },
		attributes: func(obj runtime.Object) fields.Set {
			pod := obj.(*corev1.Pod)
			set := make(fields.Set, 10)
			set[nodeNameField] = pod.Spec.NodeName
			set["spec.restartPolicy"] = string(pod.Spec.RestartPolicy)
			set["spec.schedulerName"] = pod.Spec.SchedulerName
			set["spec.serviceAccountName"] = pod.Spec.ServiceAccountName
			set["spec.hostNetwork"] = fmt.Sprint(pod.Spec.HostNetwork)
			set["status.phase"] = string(pod.Status.Phase)
			set["status.podIP"] = pod.Status.PodIP
			set["status.nominatedNodeName"] = pod.Status.NominatedNodeName
			return set
		},
	}
}

// dropGatedCondition forgets SchedulingGated when the last gate goes, so that
// nobody reads it as still true before the scheduler has had its turn.
func dropGatedCondition(pod, old *corev1.Pod) {
	if len(old.Spec.SchedulingGates) == 0 || len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	var kept []corev1.PodCondition
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Reason != corev1.PodReasonSchedulingGated {
			kept = append(kept, c)
		}
	}
	pod.Status.Conditions = kept
}

// keepPodStatusInvariants holds what a status update may not take away.
func keepPodStatusInvariants(pod, old *corev1.Pod) {
	if pod.Status.QOSClass == "" {
		pod.Status.QOSClass = old.Status.QOSClass
	}
	pod.DeletionGracePeriodSeconds = old.DeletionGracePeriodSeconds
}

func qosClass(pod *corev1.Pod) corev1.PodQOSClass {
	some, guaranteed := false, true
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := containers[i].Resources.Requests[name], containers[i].Resources.Limits[name]
				some = some || !request.IsZero() || !limit.IsZero()
				guaranteed = guaranteed && !limit.IsZero() && request.Cmp(limit) == 0
			}
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// SetPodCondition sets a condition by type and says whether anything changed;
// the transition time moves only with the status.
func SetPodCondition(status *corev1.PodStatus, c corev1.PodCondition) bool {
	c.LastTransitionTime = metav1.Now()
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
			c.LastProbeTime = old.LastProbeTime
		}
		if apiequality.Semantic.DeepEqual(*old, c) {
			return false
		}
		*old = c
		return true
	}
	status.Conditions = append(status.Conditions, c)
	return true
}

// PodConditionTrue says whether the pod has the condition with status True.
func PodConditionTrue(status *corev1.PodStatus, t corev1.PodConditionType) bool {
	for _, c := range status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
