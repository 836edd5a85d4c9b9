package controllers

import (
	"context"
	"errors"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	nodeTick = 100 * time.Millisecond

	silentReason  = "NodeStatusUnknown"
	silentMessage = "Kubelet stopped posting node status."
)

// nodeLifecycle watches the leases of kubelets. A node whose lease ran out
// becomes Ready=Unknown, tainted and its pods not ready; upstream waits
// node-monitor-grace-period instead of the lease's own duration. A node that
// never had a lease is left as it was created.
type nodeLifecycle struct {
	Deps
	ctx  context.Context
	pods cache.Indexer
}

func startNodeLifecycle(ctx context.Context, d Deps) {
	pods := d.Informers.Core().V1().Pods().Informer()
	n := &nodeLifecycle{d, ctx, pods.GetIndexer()}
	nodes, leases := d.Informers.Core().V1().Nodes(), d.Informers.Coordination().V1().Leases()
	synced := []cache.InformerSynced{pods.HasSynced, nodes.Informer().HasSynced, leases.Informer().HasSynced}
	go func() {
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return
		}
		everyTick(ctx, nodeTick, func() {
			list, err := nodes.Lister().List(labels.Everything())
			if err != nil {
				return
			}
			for _, node := range list {
				// A lease that cannot be read is one that is not there.
				lease, _ := leases.Lister().Leases(corev1.NamespaceNodeLease).Get(node.Name)
				if err := n.sync(node, lease, time.Now()); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
					klog.ErrorS(err, "node lifecycle", "node", node.Name)
				}
			}
		})
	}()
}

func (n *nodeLifecycle) sync(node *corev1.Node, lease *coordinationv1.Lease, now time.Time) error {
	if next := withConditions(node, lease, now); next != nil {
		_, err := n.Client.CoreV1().Nodes().UpdateStatus(n.ctx, next, metav1.UpdateOptions{})
		return err // taints follow when the change comes back
	}
	if next := withTaints(node, now); next != nil {
		_, err := n.Client.CoreV1().Nodes().Update(n.ctx, next, metav1.UpdateOptions{})
		return err
	}
	if ready := readyOf(node); ready == nil || ready.Status == corev1.ConditionTrue {
		return nil
	}
	return errors.Join(n.markPodsNotReady(node.Name), n.evictTainted(node, now))
}

// withConditions is the node with the conditions that its lease asks for, or
// nil if they are right.
func withConditions(node *corev1.Node, lease *coordinationv1.Lease, now time.Time) *corev1.Node {
	if lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return nil
	}
	expires := lease.Spec.RenewTime.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
	ready := readyOf(node)
	switch silent := expires.Before(now); {
	case silent && (ready == nil || ready.Status != corev1.ConditionUnknown):
		next := node.DeepCopy()
		for _, t := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			setNodeCondition(next, corev1.NodeCondition{Type: t, Status: corev1.ConditionUnknown, Reason: silentReason, Message: silentMessage}, now)
		}
		return next
	case !silent && ready != nil && ready.Reason == silentReason:
		// A kubelet posts its status as soon as it is back; a model of one that
		// only renews its lease gets the same here.
		next := node.DeepCopy()
		setNodeCondition(next, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}, now)
		for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			setNodeCondition(next, corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: "KubeletIsBack"}, now)
		}
		return next
	}
	return nil
}

func readyOf(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

func setNodeCondition(node *corev1.Node, c corev1.NodeCondition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now)
	for i := range node.Status.Conditions {
		old := &node.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		c.LastHeartbeatTime = old.LastHeartbeatTime
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	node.Status.Conditions = append(node.Status.Conditions, c)
}

// managedTaints are those that this controller alone sets and removes.
var managedTaints = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable}

// withTaints is the node with the taints that its conditions ask for, or nil if
// they are right.
func withTaints(node *corev1.Node, now time.Time) *corev1.Node {
	want := wantedTaints(node)
	var taints []corev1.Taint
	changed := false
	for _, t := range node.Spec.Taints {
		if !slices.Contains(managedTaints, t.Key) || slices.ContainsFunc(want, func(w corev1.Taint) bool { return w.MatchTaint(&t) }) {
			taints = append(taints, t)
		} else {
			changed = true
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&w) }) {
			w.TimeAdded = &metav1.Time{Time: now}
			taints = append(taints, w)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	next := node.DeepCopy()
	next.Spec.Taints = taints
	return next
}

func wantedTaints(node *corev1.Node) []corev1.Taint {
	var want []corev1.Taint
	if node.Spec.Unschedulable {
		want = append(want, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	ready := readyOf(node)
	if ready == nil || ready.Status == corev1.ConditionTrue {
		return want
	}
	key := corev1.TaintNodeNotReady
	if ready.Status == corev1.ConditionUnknown {
		key = corev1.TaintNodeUnreachable
	}
	return append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
}
