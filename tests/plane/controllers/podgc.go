package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/registry"
)

const (
	podGCTick = 200 * time.Millisecond
	// nodeQuarantine is how long a node must be missing before its pods go
	// (40 s upstream): a cache may see a pod before its node.
	nodeQuarantine = time.Second
)

// podGC removes pods that no kubelet will remove: those of nodes that are gone,
// and terminating ones on nodes declared out of service.
type podGC struct {
	Deps
	ctx     context.Context
	pods    cache.Indexer
	missing map[string]time.Time
}

func startPodGC(ctx context.Context, d Deps) {
	pods, nodes := d.Informers.Core().V1().Pods().Informer(), d.Informers.Core().V1().Nodes()
	g := &podGC{d, ctx, pods.GetIndexer(), map[string]time.Time{}}
	synced := []cache.InformerSynced{pods.HasSynced, nodes.Informer().HasSynced}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			everyTick(ctx, podGCTick, func() { g.sweep(time.Now()) })
		}
	}()
}

func (g *podGC) sweep(now time.Time) {
	for _, name := range registry.NodesWithPods(g.pods) {
		node, err := g.Informers.Core().V1().Nodes().Lister().Get(name)
		switch {
		case apierrors.IsNotFound(err) && g.gone(name, now):
			g.forceDelete(name, "PodGC: node no longer exists", func(*corev1.Pod) bool { return true })
		case err == nil:
			delete(g.missing, name)
			if outOfService(node) {
				g.forceDelete(name, "PodGC: node is out of service", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
			}
		}
	}
}

// gone says whether the node has been missing for long enough, and asks the server to be sure.
func (g *podGC) gone(name string, now time.Time) bool {
	since, known := g.missing[name]
	if !known {
		g.missing[name] = now
		return false
	}
	if now.Sub(since) < nodeQuarantine {
		return false
	}
	_, err := g.Client.CoreV1().Nodes().Get(g.ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

func outOfService(node *corev1.Node) bool {
	ready := readyOf(node)
	return ready != nil && ready.Status != corev1.ConditionTrue && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService
	})
}

func (g *podGC) forceDelete(node, why string, which func(*corev1.Pod) bool) {
	for _, pod := range registry.PodsOn(g.pods, node) {
		if !which(pod) {
			continue
		}
		err := g.disrupt(pod, corev1.PodCondition{Reason: "DeletionByPodGC", Message: why}, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			klog.ErrorS(err, "pod garbage collection", "pod", klog.KObj(pod))
		}
	}
}
