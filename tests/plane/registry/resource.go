// Package registry holds the REST storage of the built-in types: what the
// strategies in k8s.io/kubernetes do, as far as an operator can tell.
package registry

import (
	"context"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"lockstep/tests/plane/apis"
)

// Resource describes one built-in resource: its names, its subresources and the
// hooks that make it more than storage.
type Resource struct {
	GroupVersion         schema.GroupVersion
	Name, Singular, Kind string
	// ClusterScoped resources have no namespace.
	ClusterScoped bool

	status         bool // has a Status field and a /status subresource
	statusOnCreate bool // keeps the status that a creator sends (nodes)
	generation     bool // counts changes of Spec
	createOnUpdate bool // PUT to a name that does not exist creates it
	short          []string
	categories     []string
	ttlSeconds     uint64

	// validName returns what is wrong with a name; nil means DNS-1123 subdomain.
	validName      func(name string) []string
	prepareCreate  func(obj runtime.Object)
	prepareUpdate  func(obj, old runtime.Object)
	validate       func(obj runtime.Object) field.ErrorList
	validateUpdate func(obj, old runtime.Object) field.ErrorList
	warnings       func(obj runtime.Object) []string
	attributes     func(obj runtime.Object) fields.Set
	table          rest.TableConvertor
}

// GroupVersionResource is the resource's address.
func (r *Resource) GroupVersionResource() schema.GroupVersionResource {
	return r.GroupVersion.WithResource(r.Name)
}

// GroupVersionKind is the resource's kind.
func (r *Resource) GroupVersionKind() schema.GroupVersionKind {
	return r.GroupVersion.WithKind(r.Kind)
}

func (r *Resource) newObject() runtime.Object { return mustNew(r.GroupVersionKind()) }
func (r *Resource) newList() runtime.Object {
	return mustNew(r.GroupVersion.WithKind(r.Kind + "List"))
}

// mustNew panics when the catalog names a kind that the scheme does not know,
// which every start of the plane would show.
func mustNew(gvk schema.GroupVersionKind) runtime.Object {
	obj, err := apis.Scheme.New(gvk)
	if err != nil {
		panic(err)
	}
	return obj
}

func (r *Resource) attrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	m, err := apimeta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{}
	if r.attributes != nil {
		set = r.attributes(obj)
	}
	set["metadata.name"] = m.GetName()
	if !r.ClusterScoped {
		set["metadata.namespace"] = m.GetNamespace()
	}
	return labels.Set(m.GetLabels()), set, nil
}

// structField is a top-level field (Spec, Status) of any built-in object.
func structField(obj runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(name)
}

func clearField(obj runtime.Object, name string) {
	if f := structField(obj, name); f.IsValid() {
		f.SetZero()
	}
}

func copyField(obj, old runtime.Object, name string) {
	if f := structField(obj, name); f.IsValid() {
		f.Set(structField(old, name))
	}
}

func sameField(obj, old runtime.Object, name string) bool {
	return apiequality.Semantic.DeepEqual(structField(obj, name).Interface(), structField(old, name).Interface())
}

// InProcess is the request context of a call that bypasses HTTP.
func InProcess(namespace string) context.Context {
	return genericapirequest.WithNamespace(genericapirequest.NewContext(), namespace)
}
