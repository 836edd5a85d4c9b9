package validation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// standardResources are the unqualified names that a container may ask for.
var standardResources = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)

// Extended says whether a resource is one that device plugins offer: whole units, never overcommitted.
func Extended(name corev1.ResourceName) bool {
	s := string(name)
	return strings.Contains(s, "/") && !strings.Contains(s, "kubernetes.io/") && !strings.HasPrefix(s, "requests.")
}

func resources(r *corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	requests, limits := path.Child("requests"), path.Child("limits")
	var errs field.ErrorList
	for _, name := range sortedNames(r.Limits) {
		errs = append(errs, quantity(name, r.Limits[name], limits.Key(string(name)))...)
	}
	for _, name := range sortedNames(r.Requests) {
		request := r.Requests[name]
		errs = append(errs, quantity(name, request, requests.Key(string(name)))...)
		limit, limited := r.Limits[name]
		overcommit := !Extended(name) && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
		switch {
		case !limited && !overcommit:
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !overcommit && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	return errs
}

func quantity(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	errs := invalid(path, string(name), utilvalidation.IsQualifiedName(string(name)))
	qualified := strings.Contains(string(name), "/") || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if len(errs) == 0 && !qualified && !standardResources.Has(name) {
		errs = append(errs,
			field.Invalid(path, string(name), "must be a standard resource type or fully qualified"),
			field.Invalid(path, string(name), "must be a standard resource for containers"))
	}
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(path, q.String(), notNegative))
	}
	if Extended(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must be an integer"))
	}
	return errs
}

func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	return slices.SortedFunc(maps.Keys(list), func(a, b corev1.ResourceName) int { return cmp.Compare(a, b) })
}
