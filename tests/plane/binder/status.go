package binder

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"lockstep/tests/plane/registry"
)

// markUnschedulable writes why the pod fits nowhere, and where it is to go once
// its victims are gone.
func (b *Binder) markUnschedulable(pod *corev1.Pod, why string, evict *plan) {
	changed := false
	err := b.stores.UpdatePodStatus(pod, func(p *corev1.Pod) bool {
		changed = false
		if p.Spec.NodeName != "" {
			return false
		}
		changed = registry.SetPodCondition(&p.Status, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why, ObservedGeneration: p.Generation,
		})
		if evict != nil && p.Status.NominatedNodeName != evict.node {
			p.Status.NominatedNodeName, changed = evict.node, true
		}
		return changed
	})
	if err == nil && changed {
		b.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", why)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		klog.V(2).InfoS("mark unschedulable", "pod", key(pod), "err", err)
	}
}

// evict removes the plan's victims as kube-scheduler does: a condition, an event
// and a delete for each.
func (b *Binder) evict(pod *corev1.Pod, p *plan) {
	for _, victim := range p.victims {
		if victim.DeletionTimestamp != nil {
			continue
		}
		err := b.stores.UpdatePodStatus(victim, func(v *corev1.Pod) bool {
			return registry.SetPodCondition(&v.Status, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
				Message: pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod", ObservedGeneration: v.Generation,
			})
		})
		if err == nil {
			err = b.stores.DeletePod(victim.Namespace, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
		}
		if err != nil {
			if !apierrors.IsNotFound(err) {
				klog.ErrorS(err, "preemption", "victim", key(victim))
			}
			continue
		}
		b.events.Eventf(victim, corev1.EventTypeNormal, "Preempted", "Preempted by pod %s on node %s", pod.UID, p.node)
	}
}
