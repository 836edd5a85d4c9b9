package validation

import (
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Workload checks a native scheduling.k8s.io Workload.
func Workload(w *schedulingv1beta1.Workload) field.ErrorList {
	templates := field.NewPath("spec", "podGroupTemplates")
	var errs field.ErrorList
	switch n := len(w.Spec.PodGroupTemplates); {
	case n > schedulingv1beta1.WorkloadMaxPodGroupTemplates:
		errs = append(errs, field.TooMany(templates, n, schedulingv1beta1.WorkloadMaxPodGroupTemplates))
	case n == 0 && len(w.Spec.CompositePodGroupTemplates) == 0:
		errs = append(errs, field.Required(templates, ""))
	}
	seen := sets.New[string]()
	for i, t := range w.Spec.PodGroupTemplates {
		if seen.Has(t.Name) {
			errs = append(errs, field.Duplicate(templates.Index(i), t.Name))
		}
		seen.Insert(t.Name)
		errs = append(errs, schedulingPolicy(t.SchedulingPolicy, templates.Index(i).Child("schedulingPolicy"))...)
	}
	return errs
}

// PodGroup checks a native scheduling.k8s.io PodGroup.
func PodGroup(g *schedulingv1beta1.PodGroup) field.ErrorList {
	return schedulingPolicy(g.Spec.SchedulingPolicy, field.NewPath("spec", "schedulingPolicy"))
}

func schedulingPolicy(p schedulingv1beta1.PodGroupSchedulingPolicy, path *field.Path) field.ErrorList {
	if (p.Basic == nil) == (p.Gang == nil) {
		return field.ErrorList{field.Invalid(path, "", "must specify exactly one of: `basic`, `gang`")}
	}
	if p.Gang != nil && p.Gang.MinCount < 1 {
		return field.ErrorList{field.Invalid(path.Child("gang", "minCount"), p.Gang.MinCount, "must be greater than or equal to 1")}
	}
	return nil
}

// WorkloadUpdate keeps a Workload's spec, but for the minimum of its gangs.
func WorkloadUpdate(w, old *schedulingv1beta1.Workload) field.ErrorList {
	now := w.Spec.DeepCopy()
	for i := range now.PodGroupTemplates {
		if i < len(old.Spec.PodGroupTemplates) {
			keepMinCount(&now.PodGroupTemplates[i].SchedulingPolicy, old.Spec.PodGroupTemplates[i].SchedulingPolicy)
		}
	}
	return append(Workload(w), frozen(*now, old.Spec)...)
}

// PodGroupUpdate keeps a PodGroup's spec, but for the minimum of its gang.
func PodGroupUpdate(g, old *schedulingv1beta1.PodGroup) field.ErrorList {
	now := g.Spec.DeepCopy()
	keepMinCount(&now.SchedulingPolicy, old.Spec.SchedulingPolicy)
	return append(PodGroup(g), frozen(*now, old.Spec)...)
}

func keepMinCount(now *schedulingv1beta1.PodGroupSchedulingPolicy, was schedulingv1beta1.PodGroupSchedulingPolicy) {
	if now.Gang != nil && was.Gang != nil {
		now.Gang.MinCount = was.Gang.MinCount
	}
}

func frozen(now, was any) field.ErrorList {
	if apiequality.Semantic.DeepEqual(now, was) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec"), "", immutable)}
}
