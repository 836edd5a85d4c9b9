package admission

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	resourcehelper "k8s.io/component-helpers/resource"

	"lockstep/tests/plane/registry"

	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// QuotaConfiguration tells the ResourceQuota library how to count: pods by
// number and by what they ask for, some other objects by number.
type QuotaConfiguration struct{ evaluators []quota.Evaluator }

// NewQuotaConfiguration counts from the informers' caches.
func NewQuotaConfiguration(inf informers.SharedInformerFactory) *QuotaConfiguration {
	list := generic.ListResourceUsingListerFunc(generic.ListerFuncForResourceFunc(inf.ForResource), corev1.SchemeGroupVersion.WithResource("pods"))
	c := &QuotaConfiguration{evaluators: []quota.Evaluator{&podEvaluator{list}}}
	core := corev1.SchemeGroupVersion
	for _, o := range []struct {
		gvr   schema.GroupVersionResource
		alias corev1.ResourceName
	}{
		{core.WithResource("configmaps"), corev1.ResourceConfigMaps}, {core.WithResource("secrets"), corev1.ResourceSecrets},
		{core.WithResource("services"), corev1.ResourceServices}, {batchv1.SchemeGroupVersion.WithResource("jobs"), ""},
	} {
		list := generic.ListResourceUsingListerFunc(generic.ListerFuncForResourceFunc(inf.ForResource), o.gvr)
		c.evaluators = append(c.evaluators, generic.NewObjectCountEvaluator(o.gvr.GroupResource(), list, o.alias))
	}
	return c
}

// IgnoredResources are never counted: events come and go on their own.
func (*QuotaConfiguration) IgnoredResources() map[schema.GroupResource]struct{} {
	return map[schema.GroupResource]struct{}{corev1.Resource("events"): {}, {Group: "events.k8s.io", Resource: "events"}: {}}
}

// Evaluators count one resource each.
func (c *QuotaConfiguration) Evaluators() []quota.Evaluator { return c.evaluators }

const podCount = corev1.ResourceName("count/pods")

// podEvaluator counts pods: those that have not ended, and what they ask for.
type podEvaluator struct{ list generic.ListFuncByNamespace }

func (*podEvaluator) GroupResource() schema.GroupResource { return corev1.Resource("pods") }

func (*podEvaluator) Handles(a admission.Attributes) bool {
	return a.GetSubresource() == "" && a.GetOperation() == admission.Create
}

// Constraints refuses a pod that leaves out what a quota counts.
func (e *podEvaluator) Constraints(required []corev1.ResourceName, item runtime.Object) error {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("not a pod: %T", item)
	}
	var missing []string
	for _, name := range e.MatchingResources(required) {
		kind, resource := quotaKind(name)
		if kind == "" || strings.Contains(string(resource), "/") {
			continue // counts, and extended resources, may be zero
		}
		for i := range pod.Spec.Containers {
			if _, ok := amounts(&pod.Spec.Containers[i], kind)[resource]; !ok {
				missing = append(missing, fmt.Sprintf("%s for: %s", name, pod.Spec.Containers[i].Name))
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("must specify %s", strings.Join(missing, "; "))
	}
	return nil
}

func amounts(c *corev1.Container, kind string) corev1.ResourceList {
	if kind == "limits" {
		return c.Resources.Limits
	}
	return c.Resources.Requests
}

// quotaKind splits a quota's resource name into requests or limits and the
// resource; kind is empty for counts.
func quotaKind(name corev1.ResourceName) (kind string, resource corev1.ResourceName) {
	switch s := string(name); {
	case strings.HasPrefix(s, "requests."):
		return "requests", corev1.ResourceName(strings.TrimPrefix(s, "requests."))
	case strings.HasPrefix(s, "limits."):
		return "limits", corev1.ResourceName(strings.TrimPrefix(s, "limits."))
	case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage:
		return "requests", name
	}
	return "", ""
}

func (*podEvaluator) MatchingResources(input []corev1.ResourceName) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range input {
		if kind, _ := quotaKind(name); kind != "" || name == corev1.ResourcePods || name == podCount {
			out = append(out, name)
		}
	}
	return out
}

func (e *podEvaluator) Matches(q *corev1.ResourceQuota, item runtime.Object) (bool, error) {
	return generic.Matches(q, item, e.MatchingResources, matchesScope)
}

func (*podEvaluator) MatchingScopes(item runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range scopes {
		ok, err := matchesScope(s, item)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, s)
		}
	}
	return out, nil
}

func (*podEvaluator) UncoveredQuotaScopes(limited, _ []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return limited, nil
}

// Usage is what the pod takes of a quota.
func (*podEvaluator) Usage(item runtime.Object) (corev1.ResourceList, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("not a pod: %T", item)
	}
	one := *resource.NewQuantity(1, resource.DecimalSI)
	usage := corev1.ResourceList{podCount: one}
	if registry.Terminal(pod) {
		return usage, nil
	}
	usage[corev1.ResourcePods] = one
	for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		usage["requests."+name] = q
		if kind, _ := quotaKind(name); kind != "" {
			usage[name] = q
		}
	}
	for name, q := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}) {
		usage["limits."+name] = q
	}
	return usage, nil
}

func (e *podEvaluator) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, e.list, matchesScope, e.Usage)
}

func matchesScope(scope corev1.ScopedResourceSelectorRequirement, item runtime.Object) (bool, error) {
	pod, ok := item.(*corev1.Pod)
	if !ok {
		return false, fmt.Errorf("not a pod: %T", item)
	}
	bestEffort := pod.Status.QOSClass == corev1.PodQOSBestEffort
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil, nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil, nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort, nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort, nil
	case corev1.ResourceQuotaScopePriorityClass:
		return matchesClass(scope, pod.Spec.PriorityClassName), nil
	}
	return false, nil
}

func matchesClass(scope corev1.ScopedResourceSelectorRequirement, class string) bool {
	in := slices.Contains(scope.Values, class)
	switch scope.Operator {
	case corev1.ScopeSelectorOpIn:
		return in
	case corev1.ScopeSelectorOpNotIn:
		return !in
	case corev1.ScopeSelectorOpDoesNotExist:
		return class == ""
	}
	return class != ""
}
