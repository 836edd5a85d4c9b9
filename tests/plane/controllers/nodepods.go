package controllers

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/registry"
)

func (n *nodeLifecycle) podsOn(node string) []*corev1.Pod { return registry.PodsOn(n.pods, node) }

// markPodsNotReady takes the pods of a node that is not ready out of service.
func (n *nodeLifecycle) markPodsNotReady(node string) error {
	var errs []error
	for _, pod := range n.podsOn(node) {
		if !registry.PodConditionTrue(&pod.Status, corev1.PodReady) {
			continue
		}
		errs = append(errs, n.Stores.UpdatePodStatus(pod, func(p *corev1.Pod) bool {
			return registry.SetPodCondition(&p.Status, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, ObservedGeneration: p.Generation})
		}))
	}
	return errors.Join(errs...)
}

// evictTainted deletes pods that do not tolerate the node's NoExecute taints (any more).
func (n *nodeLifecycle) evictTainted(node *corev1.Node, now time.Time) error {
	var errs []error
	for _, pod := range n.podsOn(node.Name) {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if at, evict := evictionTime(pod, node.Spec.Taints); !evict || now.Before(at) {
			continue
		}
		why := corev1.PodCondition{Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"}
		errs = append(errs, n.disrupt(pod, why, metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// evictionTime says whether the taints evict the pod, and when: a taint that is
// not tolerated at once, one tolerated for a while after that.
func evictionTime(pod *corev1.Pod, taints []corev1.Taint) (at time.Time, evict bool) {
	for i := range taints {
		taint := &taints[i]
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		seconds, forever := toleration(pod.Spec.Tolerations, taint)
		if forever {
			continue
		}
		var added time.Time
		if taint.TimeAdded != nil {
			added = taint.TimeAdded.Time
		}
		due := added.Add(time.Duration(seconds) * time.Second)
		if !evict || due.Before(at) {
			at, evict = due, true
		}
	}
	return at, evict
}

// toleration is the shortest time for which the taint is tolerated; 0 if it is not.
func toleration(list []corev1.Toleration, taint *corev1.Taint) (seconds int64, forever bool) {
	found := false
	for i := range list {
		t := &list[i]
		if !t.ToleratesTaint(klog.Background(), taint, false) {
			continue
		}
		switch {
		case t.TolerationSeconds == nil && !found:
			forever = true
		case t.TolerationSeconds != nil && (forever || !found || *t.TolerationSeconds < seconds):
			seconds, forever = max(0, *t.TolerationSeconds), false
		}
		found = true
	}
	return seconds, forever
}

// disrupt says why on the pod, then deletes it.
func (d Deps) disrupt(pod *corev1.Pod, why corev1.PodCondition, o metav1.DeleteOptions) error {
	err := d.Stores.UpdatePodStatus(pod, func(p *corev1.Pod) bool {
		why.Type, why.Status, why.ObservedGeneration = corev1.DisruptionTarget, corev1.ConditionTrue, p.Generation
		changed := registry.SetPodCondition(&p.Status, why)
		if ptr.Deref(o.GracePeriodSeconds, 1) == 0 && !registry.Terminal(p) {
			p.Status.Phase, changed = corev1.PodFailed, true // nobody is left to say so
		}
		return changed
	})
	if err != nil {
		return err
	}
	o.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	return d.Stores.DeletePod(pod.Namespace, pod.Name, o)
}
