package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"lockstep/tests/plane/apis"
	podvalidation "lockstep/tests/plane/validation"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

// strategy is the create/update/delete strategy of every built-in resource.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	*Resource
}

func newStrategy(r *Resource) strategy { return strategy{apis.Scheme, names.SimpleNameGenerator, r} }

func (s strategy) NamespaceScoped() bool { return !s.ClusterScoped }

func (s strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	if s.status && !s.statusOnCreate {
		clearField(obj, "Status")
	}
	if m, err := apimeta.Accessor(obj); err == nil && s.generation {
		m.SetGeneration(1)
	}
	if s.prepareCreate != nil {
		s.prepareCreate(obj)
	}
}

func (s strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if m, err := apimeta.Accessor(obj); err == nil {
		valid := s.validName
		if valid == nil {
			valid = utilvalidation.IsDNS1123Subdomain
		}
		for _, msg := range valid(m.GetName()) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), m.GetName(), msg))
		}
	}
	if s.validate != nil {
		errs = append(errs, s.validate(obj)...)
	}
	return errs
}

func (s strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	if s.status {
		copyField(obj, old, "Status")
	}
	if s.prepareUpdate != nil {
		s.prepareUpdate(obj, old)
	}
	if !s.generation {
		return
	}
	m, err := apimeta.Accessor(obj)
	om, oldErr := apimeta.Accessor(old)
	if err != nil || oldErr != nil {
		return
	}
	m.SetGeneration(om.GetGeneration())
	if !sameField(obj, old, "Spec") {
		m.SetGeneration(om.GetGeneration() + 1)
	}
}

func (s strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.validateUpdate != nil {
		return s.validateUpdate(obj, old)
	}
	return s.Validate(ctx, obj)
}

func (s strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	if s.warnings == nil {
		return nil
	}
	return s.warnings(obj)
}

func (s strategy) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}

func (strategy) Canonicalize(runtime.Object)                   {}
func (s strategy) AllowCreateOnUpdate(context.Context) bool    { return s.createOnUpdate }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// GetResetFields keeps server-side apply from owning fields that this endpoint drops.
func (s strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.status {
		return nil
	}
	return resetField(s.GroupVersion, "status")
}

func resetField(gv schema.GroupVersion, name string) map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(gv.String()): fieldpath.NewSet(fieldpath.MakePathOrDie(name)),
	}
}

// statusStrategy is the strategy of /status: only Status (and, where upstream
// allows it, labels) may change.
type statusStrategy struct{ strategy }

func (statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	copyField(obj, old, "Spec")
	m, err := apimeta.Accessor(obj)
	om, oldErr := apimeta.Accessor(old)
	if err != nil || oldErr != nil {
		return
	}
	m.SetGeneration(om.GetGeneration())
	m.SetOwnerReferences(om.GetOwnerReferences())
	m.SetDeletionTimestamp(om.GetDeletionTimestamp())
	if s.Kind != "Pod" && s.Kind != "Node" {
		m.SetLabels(om.GetLabels())
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		keepPodStatusInvariants(pod, old.(*corev1.Pod))
	}
}

func (s statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if pod, ok := obj.(*corev1.Pod); ok {
		return podvalidation.PodStatusUpdate(pod, old.(*corev1.Pod))
	}
	return nil
}

func (s statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetField(s.GroupVersion, "spec")
}

// finalizeStrategy is the strategy of namespaces/finalize: only spec.finalizers may change.
type finalizeStrategy struct{ strategy }

func (finalizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*corev1.Namespace).Status = old.(*corev1.Namespace).Status
}

func (finalizeStrategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
