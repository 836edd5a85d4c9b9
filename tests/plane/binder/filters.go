package binder

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedhelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// refusal is why a node does not take a pod, in kube-scheduler's words.
type refusal struct {
	plugin  string
	reasons []string
	// final says that evicting others from the node cannot help.
	final bool
}

func no(reasons ...string) *refusal    { return &refusal{reasons: reasons} }
func never(reasons ...string) *refusal { return &refusal{reasons: reasons, final: true} }

// filters are asked in this order, and the first refusal counts, as in
// kube-scheduler (pkg/scheduler/apis/config/v1/default_plugins.go).
var filters = []struct {
	plugin string
	check  func(*question, *nodeState) *refusal
}{
	{"NodeUnschedulable", schedulableNode},
	{"TaintToleration", toleratesTaints},
	{"NodeAffinity", matchesNodeAffinity},
	{"NodePorts", hasFreePorts},
	{"NodeResourcesFit", hasCapacity},
	{"VolumeRestrictions", mountsAlone},
	{"VolumeBinding", reachesVolumes},
	{"PodTopologySpread", keepsSpread},
	{"InterPodAffinity", matchesPodAffinity},
	{"NodeDeclaredFeatures", declaresFeatures},
}

// check is why the node does not take the pod; nil if it does. Pods nominated to
// the node count as running there; the pod has to fit without them, too, as it
// may have affinity to one of them.
func (q *question) check(n *nodeState) *refusal {
	if guests := q.nominatedTo(n); len(guests) > 0 {
		if r := q.withGuests(guests).run(n); r != nil {
			return r
		}
	}
	return q.run(n)
}

func (q *question) run(n *nodeState) *refusal {
	for _, f := range filters {
		if r := f.check(q, n); r != nil {
			r.plugin = f.plugin
			return r
		}
	}
	return nil
}

func schedulableNode(q *question, n *nodeState) *refusal {
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if n.node.Spec.Unschedulable && !schedhelper.TolerationsTolerateTaint(klog.Background(), q.pod.Spec.Tolerations, &taint, false) {
		return never("node(s) were unschedulable")
	}
	return nil
}

// toleratesTaints refuses a node that is not ready as the taint would that such
// a node gets a moment later.
func toleratesTaints(q *question, n *nodeState) *refusal {
	_, untolerated := schedhelper.FindMatchingUntoleratedTaint(klog.Background(), n.node.Spec.Taints, q.pod.Spec.Tolerations, keepsPodsOff, false)
	if untolerated || !ready(n.node) {
		return never("node(s) had untolerated taint(s)")
	}
	return nil
}

func keepsPodsOff(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func matchesNodeAffinity(q *question, n *nodeState) *refusal {
	if ok, err := q.affinity.Match(n.node); !ok || err != nil {
		return never("node(s) didn't match Pod's node affinity/selector")
	}
	return nil
}

func declaresFeatures(q *question, n *nodeState) *refusal {
	if q.features.IsEmpty() {
		return nil
	}
	if match, err := nodeFeatures.MatchNode(q.features, n.node); err != nil || !match.IsMatch {
		return never("node(s) didn't match Pod's required features")
	}
	return nil
}
