package validation

import (
	"math"
	"reflect"

	"k8s.io/utils/ptr"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

const notNegative = "must be greater than or equal to 0"

// Pod checks a pod that is being created.
func Pod(pod *corev1.Pod) field.ErrorList {
	errs := invalid(field.NewPath("metadata", "name"), pod.Name, utilvalidation.IsDNS1123Subdomain(pod.Name))
	return append(errs, PodSpec(&pod.Spec, field.NewPath("spec"))...)
}

// PodSpec checks the spec of a pod or of a pod template.
func PodSpec(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	volumes, errs := volumeNames(spec.Volumes, path.Child("volumes"))
	errs = append(errs, containers(spec, volumes, path)...)
	errs = append(errs, podRestartPolicy(spec.RestartPolicy, path.Child("restartPolicy"))...)
	errs = append(errs, metav1validation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	errs = append(errs, affinity(spec.Affinity, path.Child("affinity"))...)
	errs = append(errs, tolerations(spec.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, schedulingGates(spec, path)...)
	errs = append(errs, podNames(spec, path)...)
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if p := spec.PreemptionPolicy; p != nil && *p != corev1.PreemptLowerPriority && *p != corev1.PreemptNever {
		errs = append(errs, field.NotSupported(path.Child("preemptionPolicy"), *p, []corev1.PreemptionPolicy{corev1.PreemptLowerPriority, corev1.PreemptNever}))
	}
	return errs
}

// PodWarnings are remarks on a pod that is accepted all the same.
func PodWarnings(pod *corev1.Pod) []string {
	if ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0) < 0 {
		return []string{"spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"}
	}
	return nil
}

func podNames(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name, value string
		valid       func(string) []string
	}{
		{"hostname", spec.Hostname, utilvalidation.IsDNS1123Label},
		{"subdomain", spec.Subdomain, utilvalidation.IsDNS1123Label},
		{"nodeName", spec.NodeName, utilvalidation.IsDNS1123Subdomain},
		{"serviceAccountName", spec.ServiceAccountName, utilvalidation.IsDNS1123Subdomain},
		{"priorityClassName", spec.PriorityClassName, utilvalidation.IsDNS1123Subdomain},
	} {
		if f.value != "" {
			errs = append(errs, invalid(path.Child(f.name), f.value, f.valid(f.value))...)
		}
	}
	return errs
}

func podRestartPolicy(policy corev1.RestartPolicy, path *field.Path) field.ErrorList {
	switch policy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, policy, []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever})}
}

func schedulingGates(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	gates, seen := path.Child("schedulingGates"), sets.New[string]()
	for i, gate := range spec.SchedulingGates {
		at := gates.Index(i)
		errs = append(errs, invalid(at, gate.Name, utilvalidation.IsQualifiedName(gate.Name))...)
		if seen.Has(gate.Name) {
			errs = append(errs, field.Duplicate(at, gate.Name))
		}
		seen.Insert(gate.Name)
	}
	if spec.NodeName != "" && len(spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// volumeNames checks names and the number of sources; it returns the names that
// mounts may refer to.
func volumeNames(volumes []corev1.Volume, path *field.Path) (sets.Set[string], field.ErrorList) {
	names := sets.New[string]()
	var errs field.ErrorList
	for i := range volumes {
		v, at := &volumes[i], path.Index(i)
		switch n := sourceCount(&v.VolumeSource); {
		case n == 0:
			errs = append(errs, field.Required(at, "must specify a volume type"))
		case n > 1:
			errs = append(errs, field.Forbidden(at, "may not specify more than 1 volume type"))
		}
		nameAt := at.Child("name")
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(nameAt, ""))
		case len(utilvalidation.IsDNS1123Label(v.Name)) > 0:
			errs = append(errs, invalid(nameAt, v.Name, utilvalidation.IsDNS1123Label(v.Name))...)
		case names.Has(v.Name):
			errs = append(errs, field.Duplicate(nameAt, v.Name))
		}
		names.Insert(v.Name)
	}
	return names, errs
}

// sourceCount counts the sources set; every field of VolumeSource is a pointer.
func sourceCount(source *corev1.VolumeSource) int {
	n, v := 0, reflect.ValueOf(source).Elem()
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			n++
		}
	}
	return n
}

// invalid turns the messages of a name check into errors.
func invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range messages {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}
