package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"lockstep/tests/plane/registry"

	quota "k8s.io/apiserver/pkg/quota/v1"
)

// startQuotas publishes the limits of quotas and counts anew when something that
// they count has gone; the admission plugin counts what comes.
func startQuotas(ctx context.Context, d Deps) {
	queue := newQueue[string](20*time.Millisecond, time.Second)
	quotas := d.Informers.Core().V1().ResourceQuotas()
	onAny(quotas.Informer(), func(obj any) {
		// Only new limits: a recount after each charge of the admission plugin
		// would miss the pod that is charged for but not yet in the cache.
		if q, ok := obj.(*corev1.ResourceQuota); ok && !quota.Equals(q.Spec.Hard, q.Status.Hard) {
			queue.Add(q.Namespace)
		}
	})
	_, _ = d.Informers.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, obj any) {
			if old, pod := before.(*corev1.Pod), obj.(*corev1.Pod); registry.Terminal(pod) && !registry.Terminal(old) {
				queue.AddAfter(pod.Namespace, 50*time.Millisecond)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := unwrap(obj).(*corev1.Pod); ok {
				queue.AddAfter(pod.Namespace, 50*time.Millisecond)
			}
		},
	})
	work(ctx, 1, queue, func(namespace string) error {
		list, err := quotas.Lister().ResourceQuotas(namespace).List(labels.Everything())
		if err != nil {
			return err
		}
		for _, q := range list {
			if err := syncQuota(ctx, d, q); err != nil {
				return err
			}
		}
		return nil
	})
}

func syncQuota(ctx context.Context, d Deps, q *corev1.ResourceQuota) error {
	status := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: corev1.ResourceList{}}
	names := quota.ResourceNames(q.Spec.Hard)
	for _, e := range d.Quotas.Evaluators() {
		matched := e.MatchingResources(names)
		if len(matched) == 0 {
			continue
		}
		stats, err := e.UsageStats(quota.UsageStatsOptions{Namespace: q.Namespace, Scopes: q.Spec.Scopes, Resources: matched, ScopeSelector: q.Spec.ScopeSelector})
		if err != nil {
			return err
		}
		status.Used = quota.Add(status.Used, quota.Mask(stats.Used, matched))
	}
	if quota.Equals(status.Hard, q.Status.Hard) && quota.Equals(status.Used, q.Status.Used) {
		return nil
	}
	next := q.DeepCopy()
	next.Status = status
	_, err := d.Client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}
