package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const immutable = "field is immutable"

// Service checks a service that is being created.
func Service(svc *corev1.Service) field.ErrorList {
	spec := field.NewPath("spec")
	errs := metav1validation.ValidateLabels(svc.Spec.Selector, spec.Child("selector"))
	headless := svc.Spec.ClusterIP == corev1.ClusterIPNone
	if len(svc.Spec.Ports) == 0 && !headless && svc.Spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(spec.Child("ports"), ""))
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName && svc.Spec.ExternalName == "" {
		errs = append(errs, field.Required(spec.Child("externalName"), ""))
	}
	names := sets.New[string]()
	for i := range svc.Spec.Ports {
		errs = append(errs, servicePort(&svc.Spec.Ports[i], len(svc.Spec.Ports) > 1, names, spec.Child("ports").Index(i))...)
	}
	return errs
}

func servicePort(p *corev1.ServicePort, named bool, names sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch name := path.Child("name"); {
	case p.Name == "" && named:
		errs = append(errs, field.Required(name, ""))
	case p.Name != "":
		errs = append(errs, invalid(name, p.Name, utilvalidation.IsDNS1123Label(p.Name))...)
		if names.Has(p.Name) {
			errs = append(errs, field.Duplicate(name, p.Name))
		}
		names.Insert(p.Name)
	}
	errs = append(errs, invalid(path.Child("port"), p.Port, utilvalidation.IsValidPortNum(int(p.Port)))...)
	return append(errs, protocol(p.Protocol, path.Child("protocol"))...)
}

// ServiceUpdate checks a change of a service.
func ServiceUpdate(svc, old *corev1.Service) field.ErrorList {
	errs := Service(svc)
	if old.Spec.ClusterIP != "" && svc.Spec.ClusterIP != old.Spec.ClusterIP && svc.Spec.Type != corev1.ServiceTypeExternalName {
		path := field.NewPath("spec")
		errs = append(errs,
			field.Invalid(path.Child("clusterIPs").Index(0), []string{svc.Spec.ClusterIP}, "may not change once set"))
	}
	return errs
}

// ConfigMapUpdate keeps an immutable config map as it is.
func ConfigMapUpdate(cm, old *corev1.ConfigMap) field.ErrorList {
	if !ptr.Deref(old.Immutable, false) {
		return nil
	}
	var errs field.ErrorList
	const msg = "field is immutable when `immutable` is set"
	if !ptr.Deref(cm.Immutable, false) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), msg))
	}
	if !apiequality.Semantic.DeepEqual(cm.Data, old.Data) {
		errs = append(errs, field.Forbidden(field.NewPath("data"), msg))
	}
	if !apiequality.Semantic.DeepEqual(cm.BinaryData, old.BinaryData) {
		errs = append(errs, field.Forbidden(field.NewPath("binaryData"), msg))
	}
	return errs
}

var template = field.NewPath("spec", "template", "spec")

// Job checks a job that is being created.
func Job(job *batchv1.Job) field.ErrorList {
	errs := PodSpec(&job.Spec.Template.Spec, template)
	if p := job.Spec.Template.Spec.RestartPolicy; p == corev1.RestartPolicyAlways {
		errs = append(errs, field.Required(template.Child("restartPolicy"), `valid values: "OnFailure", "Never"`))
	}
	return errs
}

// Deployment checks a deployment that is being created.
func Deployment(d *appsv1.Deployment) field.ErrorList {
	return append(alwaysRestarts(&d.Spec.Template.Spec), selects(d.Spec.Selector, d.Spec.Template.Labels)...)
}

// DaemonSet checks a daemon set that is being created.
func DaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	return append(alwaysRestarts(&d.Spec.Template.Spec), selects(d.Spec.Selector, d.Spec.Template.Labels)...)
}

func alwaysRestarts(spec *corev1.PodSpec) field.ErrorList {
	errs := PodSpec(spec, template)
	if spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(template.Child("restartPolicy"), spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	return errs
}

// selects checks that a selector takes the pods of its own template.
func selects(selector *metav1.LabelSelector, podLabels map[string]string) field.ErrorList {
	if selector == nil {
		return field.ErrorList{field.Required(field.NewPath("spec", "selector"), "")}
	}
	if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || !s.Matches(labels.Set(podLabels)) {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "template", "metadata", "labels"), podLabels, "`selector` does not match template `labels`")}
	}
	return nil
}

// Lease checks a lease.
func Lease(lease *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	if d := lease.Spec.LeaseDurationSeconds; d != nil && *d <= 0 {
		errs = append(errs, field.Invalid(spec.Child("leaseDurationSeconds"), *d, "must be greater than 0"))
	}
	if t := lease.Spec.LeaseTransitions; t != nil && *t < 0 {
		errs = append(errs, field.Invalid(spec.Child("leaseTransitions"), *t, notNegative))
	}
	return errs
}

// DisruptionBudget checks a pod disruption budget.
func DisruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	if b.Spec.MinAvailable != nil && b.Spec.MaxUnavailable != nil {
		return field.ErrorList{field.Invalid(field.NewPath("spec"), b.Spec, "minAvailable and maxUnavailable cannot be both set")}
	}
	return nil
}

// highestUserPriority is the bound above which priorities belong to the system.
const highestUserPriority = 1_000_000_000

// PriorityClass checks a priority class.
func PriorityClass(pc *schedulingv1.PriorityClass) field.ErrorList {
	if pc.Value > highestUserPriority && pc.Name != "system-node-critical" && pc.Name != "system-cluster-critical" {
		return field.ErrorList{field.Forbidden(field.NewPath("value"), "maximum allowed value of a user defined priority is 1000000000")}
	}
	return nil
}

// PriorityClassUpdate keeps a class's value and policy as they are.
func PriorityClassUpdate(pc, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if pc.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	if ptr.Deref(pc.PreemptionPolicy, "") != ptr.Deref(old.PreemptionPolicy, "") {
		errs = append(errs, field.Invalid(field.NewPath("preemptionPolicy"), pc.PreemptionPolicy, immutable))
	}
	return errs
}
