package controllers

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func nodeWith(status corev1.ConditionStatus, reason string) *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: reason}}}}
}

func leaseOf(age time.Duration) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(now.Add(-age))
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: ptr.To[int32](40)}}
}

func TestANodeFollowsItsLease(t *testing.T) {
	for _, c := range []struct {
		name  string
		node  *corev1.Node
		lease *coordinationv1.Lease
		want  corev1.ConditionStatus // "" for no change
	}{
		{"no lease", nodeWith(corev1.ConditionTrue, "KubeletReady"), nil, ""},
		{"renewed", nodeWith(corev1.ConditionTrue, "KubeletReady"), leaseOf(39 * time.Second), ""},
		{"ran out", nodeWith(corev1.ConditionTrue, "KubeletReady"), leaseOf(41 * time.Second), corev1.ConditionUnknown},
		{"known to be silent", nodeWith(corev1.ConditionUnknown, silentReason), leaseOf(41 * time.Second), ""},
		{"back", nodeWith(corev1.ConditionUnknown, silentReason), leaseOf(0), corev1.ConditionTrue},
		{"not ready by its own word", nodeWith(corev1.ConditionFalse, "KubeletNotReady"), leaseOf(0), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got corev1.ConditionStatus
			if next := withConditions(c.node, c.lease, now); next != nil {
				got = readyOf(next).Status
			}
			if got != c.want {
				t.Errorf("want %q, got %q", c.want, got)
			}
		})
	}
}

func TestTaintsFollowReadiness(t *testing.T) {
	foreign := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule}
	node := nodeWith(corev1.ConditionUnknown, silentReason)
	node.Spec.Taints = []corev1.Taint{foreign}
	silent := withTaints(node, now)
	if silent == nil || len(silent.Spec.Taints) != 3 || silent.Spec.Taints[2].Key != corev1.TaintNodeUnreachable || silent.Spec.Taints[2].Effect != corev1.TaintEffectNoExecute {
		t.Fatalf("%+v", silent)
	}
	if again := withTaints(silent, now); again != nil {
		t.Errorf("nothing is to change, got %+v", again.Spec.Taints)
	}
	silent.Status.Conditions[0].Status = corev1.ConditionTrue
	if back := withTaints(silent, now); back == nil || len(back.Spec.Taints) != 1 || back.Spec.Taints[0] != foreign {
		t.Errorf("only the foreign taint stays, got %+v", back)
	}
}

func TestPodsLeaveATaintedNodeWhenTheirTolerationRunsOut(t *testing.T) {
	taints := []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: now}}}
	for _, c := range []struct {
		name    string
		seconds []*int64 // of tolerations of the taint
		evict   bool
		after   time.Duration
	}{
		{"not tolerated", nil, true, 0},
		{"tolerated", []*int64{nil}, false, 0},
		{"for a while", []*int64{ptr.To[int64](30)}, true, 30 * time.Second},
		{"for the shorter while", []*int64{ptr.To[int64](30), ptr.To[int64](10), nil}, true, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{}
			for _, s := range c.seconds {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists, TolerationSeconds: s})
			}
			at, evict := evictionTime(pod, taints)
			if evict != c.evict || evict && at.Sub(now) != c.after {
				t.Errorf("want %v after %s, got %v after %s", c.evict, c.after, evict, at.Sub(now))
			}
		})
	}
}

func TestABudgetCountsHealthyPodsAndEvictions(t *testing.T) {
	ready := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	}
	budget := &policyv1.PodDisruptionBudget{
		Spec:   policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromString("50%")), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{"p1": {Time: now}, "gone": {Time: now}}},
	}
	status, err := budgetStatus(budget, []*corev1.Pod{ready("p1"), ready("p2"), ready("p3"), ready("p4")}, now)
	if err != nil {
		t.Fatal(err)
	}
	if status.ExpectedPods != 4 || status.CurrentHealthy != 3 || status.DesiredHealthy != 2 || status.DisruptionsAllowed != 1 || len(status.DisruptedPods) != 1 {
		t.Errorf("%+v", status)
	}
}

func TestAnAggregatedRoleHasTheRulesOfTheLabelled(t *testing.T) {
	rule := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{"get"}, Resources: []string{resource}}}
	}
	labelled := func(name, resource string) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"to": "view"}}, Rules: rule(resource)}
	}
	target := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"to": "view"}}}}}
	other := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Rules: rule("secrets")}
	got := aggregate(target, []*rbacv1.ClusterRole{labelled("a", "pods"), labelled("b", "nodes"), labelled("c", "pods"), other, target})
	if len(got) != 2 || got[0].Resources[0] != "pods" || got[1].Resources[0] != "nodes" {
		t.Errorf("%+v", got)
	}
}
