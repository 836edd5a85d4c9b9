package binder

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	schedhelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"k8s.io/klog/v2"
)

// restartAllFeature is what a node declares that can run pods with a
// RestartAllContainers rule (KEP-5328, KEP-5532).
const restartAllFeature = "RestartAllContainersOnContainerExits"

// question is a pod with what is derived from it once for all nodes.
type question struct {
	pod        *corev1.Pod
	requests   amounts
	affinity   nodeaffinity.RequiredNodeAffinity
	pins       sets.Set[string] // the only nodes that may match; nil for any
	restartAll bool
}

func ask(pod *corev1.Pod) *question {
	return &question{pod, requests(pod), nodeaffinity.GetRequiredNodeAffinity(pod), pins(pod), restartsAll(pod)}
}

// pins are the names that every required term asks for by metadata.name.
func pins(pod *corev1.Pod) sets.Set[string] {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	names := sets.New[string]()
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		i := slices.IndexFunc(term.MatchFields, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == corev1.NodeSelectorOpIn
		})
		if i < 0 {
			return nil
		}
		names.Insert(term.MatchFields[i].Values...)
	}
	return names
}

func restartsAll(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, rule := range containers[i].RestartPolicyRules {
				if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// unfit says why a node cannot take the pod for reasons that evicting others
// does not change; "" if there are none.
func (q *question) unfit(n *nodeState, switches *Switches) string {
	if q.pins != nil && !q.pins.Has(n.node.Name) {
		return "node(s) didn't satisfy plugin(s) [NodeAffinity]"
	}
	if n.node.Spec.Unschedulable && !toleratesUnschedulable(q.pod) {
		return "node(s) were unschedulable"
	}
	if !ready(n.node) {
		return "node(s) were not ready"
	}
	taint, bad := schedhelper.FindMatchingUntoleratedTaint(klog.Background(), n.node.Spec.Taints, q.pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, false)
	if bad {
		return fmt.Sprintf("node(s) had untolerated taint {%s: %s}", taint.Key, taint.Value)
	}
	if ok, err := q.affinity.Match(n.node); !ok || err != nil {
		return "node(s) didn't match Pod's node affinity/selector"
	}
	if q.restartAll && !slices.Contains(n.node.Status.DeclaredFeatures, restartAllFeature) {
		return "node declared features check failed - unsatisfied requirements: " + restartAllFeature
	}
	if q.pins != nil && switches.refuses(q.pod.Namespace, n.node.Name) {
		return "node(s) had volume node affinity conflict"
	}
	return ""
}

func toleratesUnschedulable(pod *corev1.Pod) bool {
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taint, false) })
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// short says what a node lacks of what the pod asks for; "" if nothing.
func (q *question) short(room amounts) string {
	var lacks []string
	for name, v := range q.requests {
		if v <= room[name] {
			continue
		}
		if name == corev1.ResourcePods {
			lacks = append(lacks, "Too many pods")
		} else {
			lacks = append(lacks, "Insufficient "+string(name))
		}
	}
	slices.Sort(lacks)
	return strings.Join(lacks, ", ")
}
