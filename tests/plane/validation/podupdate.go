package validation

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

const podSpecFrozen = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// PodUpdate checks a change of a pod's metadata or spec. What may change is set
// back on a copy; any difference that is left is refused.
func PodUpdate(pod, old *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := PodSpec(&pod.Spec, spec)
	for _, c := range []struct {
		name     string
		now, was int
	}{
		{"containers", len(pod.Spec.Containers), len(old.Spec.Containers)},
		{"initContainers", len(pod.Spec.InitContainers), len(old.Spec.InitContainers)},
	} {
		if c.now != c.was {
			return append(errs, field.Forbidden(spec.Child(c.name), "pod updates may not add or remove containers"))
		}
	}
	errs = append(errs, activeDeadlineUpdate(pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, spec.Child("activeDeadlineSeconds"))...)
	errs = append(errs, tolerationsUpdate(pod.Spec.Tolerations, old.Spec.Tolerations, spec.Child("tolerations"))...)
	errs = append(errs, gatesUpdate(pod.Spec.SchedulingGates, old.Spec.SchedulingGates, spec.Child("schedulingGates"))...)

	rest := pod.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.Tolerations = old.Spec.Tolerations
	rest.SchedulingGates = old.Spec.SchedulingGates
	if ptr.Deref(old.Spec.TerminationGracePeriodSeconds, 0) < 0 && ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0) == 1 {
		rest.TerminationGracePeriodSeconds = old.Spec.TerminationGracePeriodSeconds
	}
	if len(old.Spec.SchedulingGates) > 0 { // a gated pod may be told where to go
		errs = append(errs, nodeSelectorUpdate(pod.Spec.NodeSelector, old.Spec.NodeSelector, spec.Child("nodeSelector"))...)
		rest.NodeSelector = old.Spec.NodeSelector
		errs = append(errs, nodeAffinityUpdate(pod.Spec.Affinity, old.Spec.Affinity, spec.Child("affinity", "nodeAffinity"))...)
		rest.Affinity = withNodeAffinityOf(rest.Affinity, old.Spec.Affinity)
	}
	if !apiequality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(spec, podSpecFrozen))
	}
	return errs
}

func activeDeadlineUpdate(now, was *int64, path *field.Path) field.ErrorList {
	switch {
	case now != nil && (*now < 0 || *now > math.MaxInt32):
		return field.ErrorList{field.Invalid(path, *now, utilvalidation.InclusiveRangeError(0, math.MaxInt32))}
	case now != nil && was != nil && *was < *now:
		return field.ErrorList{field.Invalid(path, *now, "must be less than or equal to previous value")}
	case now == nil && was != nil:
		return field.ErrorList{field.Invalid(path, now, "must not update from a positive integer to nil value")}
	}
	return nil
}

func tolerationsUpdate(now, was []corev1.Toleration, path *field.Path) field.ErrorList {
	for i := range was {
		kept := false
		for j := range now {
			kept = kept || now[j].MatchToleration(&was[i])
		}
		if !kept {
			return field.ErrorList{field.Forbidden(path, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

func gatesUpdate(now, was []corev1.PodSchedulingGate, path *field.Path) field.ErrorList {
	known := sets.New[string]()
	for _, g := range was {
		known.Insert(g.Name)
	}
	var errs field.ErrorList
	for i, g := range now {
		if !known.Has(g.Name) {
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

func nodeSelectorUpdate(now, was map[string]string, path *field.Path) field.ErrorList {
	for k, v := range was {
		if got, ok := now[k]; !ok || got != v {
			return field.ErrorList{field.Invalid(path, now, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")}
		}
	}
	return nil
}

// nodeAffinityUpdate lets required terms get tighter, never looser (KEP-3838).
// Preferred terms may change freely.
func nodeAffinityUpdate(now, was *corev1.Affinity, path *field.Path) field.ErrorList {
	before, after := requiredTerms(was), requiredTerms(now)
	if len(before) == 0 {
		return nil
	}
	terms := path.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if len(before) != len(after) {
		return field.ErrorList{field.Invalid(terms, after, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range before {
		if !extends(after[i].MatchExpressions, before[i].MatchExpressions) || !extends(after[i].MatchFields, before[i].MatchFields) ||
			len(before[i].MatchExpressions)+len(before[i].MatchFields) == 0 && len(after[i].MatchExpressions)+len(after[i].MatchFields) > 0 {
			errs = append(errs, field.Invalid(terms.Index(i), after[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// extends says whether now is was with more at its end.
func extends(now, was []corev1.NodeSelectorRequirement) bool {
	return len(now) >= len(was) && apiequality.Semantic.DeepEqual(now[:len(was)], was)
}

func requiredTerms(a *corev1.Affinity) []corev1.NodeSelectorTerm {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// withNodeAffinityOf is a with the node affinity of old, so that only the other
// kinds of affinity are compared.
func withNodeAffinityOf(a, old *corev1.Affinity) *corev1.Affinity {
	if old == nil && (a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil) {
		return nil
	}
	out := &corev1.Affinity{}
	if a != nil {
		out = a.DeepCopy()
	}
	out.NodeAffinity = nil
	if old != nil {
		out.NodeAffinity = old.NodeAffinity
	}
	return out
}
