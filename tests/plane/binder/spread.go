package binder

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedhelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

const spreadBroken = "node(s) didn't match pod topology spread constraints"

// spreadRule is a constraint that must hold, with the pods that it counts.
type spreadRule struct {
	corev1.TopologySpreadConstraint
	selector labels.Selector
	counts   map[string]int // by domain
}

func mustHold(c corev1.TopologySpreadConstraint) bool {
	return c.WhenUnsatisfiable == corev1.DoNotSchedule
}

// keepsSpread holds the pod's constraints (plugin PodTopologySpread).
func keepsSpread(q *question, n *nodeState) *refusal {
	for _, rule := range q.spread() {
		domain, ok := n.node.Labels[rule.TopologyKey]
		if !ok {
			return never(spreadBroken + " (missing required label)")
		}
		skew := rule.counts[domain] - rule.least()
		if rule.selector.Matches(labels.Set(q.pod.Labels)) {
			skew++
		}
		if skew > int(rule.MaxSkew) {
			return no(spreadBroken)
		}
	}
	return nil
}

// least is the count of the emptiest domain, 0 while there are too few domains.
func (r *spreadRule) least() int {
	if len(r.counts) < int(ptr.Deref(r.MinDomains, 1)) {
		return 0
	}
	return slices.Min(slices.Collect(maps.Values(r.counts)))
}

// countSpread counts over the nodes that have every rule's label.
func countSpread(q *question) []*spreadRule {
	var rules []*spreadRule
	for _, c := range q.pod.Spec.TopologySpreadConstraints {
		if mustHold(c) {
			rules = append(rules, &spreadRule{c, spreadSelector(q.pod, &c), map[string]int{}})
		}
	}
	if rules == nil {
		return nil
	}
	for _, n := range q.state.order {
		if slices.ContainsFunc(rules, func(r *spreadRule) bool { _, ok := n.node.Labels[r.TopologyKey]; return !ok }) {
			continue
		}
		for _, r := range rules {
			if r.includes(q, n.node) {
				r.counts[n.node.Labels[r.TopologyKey]] += r.matching(q, n)
			}
		}
	}
	return rules
}

// spreadSelector is the constraint's selector, narrowed to pods of the same
// matchLabelKeys.
func spreadSelector(pod *corev1.Pod, c *corev1.TopologySpreadConstraint) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return labels.Nothing()
	}
	same := labels.Set{}
	for _, k := range c.MatchLabelKeys {
		if v, ok := pod.Labels[k]; ok {
			same[k] = v
		}
	}
	narrower, _ := same.AsSelector().Requirements()
	return selector.Add(narrower...)
}

// includes says whether the node counts: by default, if the pod's node affinity
// allows it, whatever its taints.
func (r *spreadRule) includes(q *question, node *corev1.Node) bool {
	if ptr.Deref(r.NodeAffinityPolicy, corev1.NodeInclusionPolicyHonor) == corev1.NodeInclusionPolicyHonor {
		if ok, _ := q.affinity.Match(node); !ok {
			return false
		}
	}
	if ptr.Deref(r.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) == corev1.NodeInclusionPolicyIgnore {
		return true
	}
	_, untolerated := schedhelper.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, q.pod.Spec.Tolerations, keepsPodsOff, false)
	return !untolerated
}

// matching counts the pods on a node that the rule selects; those that end do not count.
func (r *spreadRule) matching(q *question, n *nodeState) int {
	count := 0
	for pod := range q.podsOn(n) {
		if pod.DeletionTimestamp == nil && pod.Namespace == q.pod.Namespace && r.selector.Matches(labels.Set(pod.Labels)) {
			count++
		}
	}
	return count
}
