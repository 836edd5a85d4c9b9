package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep/tests/plane/registry"
)

// evictedMemory is how long an eviction counts against a budget while its pod
// shows no sign of going.
const evictedMemory = 2 * time.Minute

// startBudgets keeps the status of disruption budgets. The pods expected are
// those that exist: there are no controllers with a scale here.
func startBudgets(ctx context.Context, d Deps) {
	queue := newQueue[string](20*time.Millisecond, time.Second)
	mark := func(obj any) {
		if m, ok := obj.(metav1.Object); ok {
			queue.AddAfter(m.GetNamespace(), 100*time.Millisecond)
		}
	}
	pods, budgets := d.Informers.Core().V1().Pods(), d.Informers.Policy().V1().PodDisruptionBudgets()
	onAny(pods.Informer(), mark)
	onAny(budgets.Informer(), mark)
	work(ctx, 1, queue, func(namespace string) error {
		list, err := budgets.Lister().PodDisruptionBudgets(namespace).List(labels.Everything())
		if err != nil || len(list) == 0 {
			return err
		}
		members, err := pods.Lister().Pods(namespace).List(labels.Everything())
		if err != nil {
			return err
		}
		for _, b := range list {
			status, err := budgetStatus(b, members, time.Now())
			if err != nil || apiequality.Semantic.DeepEqual(status, b.Status) {
				continue // a selector that cannot be read guards nothing
			}
			if err := d.Stores.UpdateBudgetStatus(b, status); err != nil {
				return err
			}
		}
		return nil
	})
}

// budgetStatus counts the pods of a budget.
func budgetStatus(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, now time.Time) (policyv1.PodDisruptionBudgetStatus, error) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return b.Status, err
	}
	status := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, Conditions: b.Status.Conditions}
	for _, pod := range pods {
		if !selector.Matches(labels.Set(pod.Labels)) || registry.Terminal(pod) {
			continue
		}
		status.ExpectedPods++
		since, evicted := b.Status.DisruptedPods[pod.Name]
		evicted = evicted && now.Sub(since.Time) < evictedMemory
		if pod.DeletionTimestamp == nil && evicted {
			if status.DisruptedPods == nil {
				status.DisruptedPods = map[string]metav1.Time{}
			}
			status.DisruptedPods[pod.Name] = since
		}
		if pod.DeletionTimestamp == nil && !evicted && registry.PodConditionTrue(&pod.Status, corev1.PodReady) {
			status.CurrentHealthy++
		}
	}
	status.DesiredHealthy, err = desiredHealthy(b, status.ExpectedPods)
	status.DisruptionsAllowed = max(0, status.CurrentHealthy-status.DesiredHealthy)
	return status, err
}

func desiredHealthy(b *policyv1.PodDisruptionBudget, expected int32) (int32, error) {
	switch {
	case b.Spec.MinAvailable != nil:
		v, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(expected), true)
		return int32(v), err
	case b.Spec.MaxUnavailable != nil:
		v, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(expected), true)
		return max(0, expected-int32(v)), err
	}
	return expected, nil
}
