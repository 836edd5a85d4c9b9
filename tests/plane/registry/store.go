package registry

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"lockstep/tests/plane/apis"
)

// REST is the main endpoint of a built-in resource.
type REST struct {
	*genericregistry.Store
	resource *Resource
}

// ShortNames are the abbreviations that kubectl accepts.
func (r *REST) ShortNames() []string { return r.resource.short }

// Categories are the groups of resources ("all") that this one is in.
func (r *REST) Categories() []string { return r.resource.categories }

// StatusREST serves a subresource that reads and updates the whole object.
type StatusREST struct{ store *genericregistry.Store }

// New is an empty object for decoding.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the main endpoint owns the store.
func (r *StatusREST) Destroy() {}

// Get reads the object.
func (r *StatusREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, o)
}

// Update changes the object; it never creates one.
func (r *StatusREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, o)
}

// GetResetFields keeps server-side apply from owning fields that this endpoint drops.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable prints the object.
func (r *StatusREST) ConvertToTable(ctx context.Context, o, t runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, o, t)
}

// protobufOptions hands out per-resource storage options: built-in types are
// protobuf in etcd, each in the one version that is served.
type protobufOptions struct {
	base storagebackend.Config
	gv   schema.GroupVersion
}

func (g protobufOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	info, ok := runtime.SerializerInfoForMediaType(apis.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return generic.RESTOptions{}, fmt.Errorf("scheme has no protobuf serializer")
	}
	cfg := g.base
	internal := schema.GroupVersion{Group: g.gv.Group, Version: runtime.APIVersionInternal}
	cfg.Codec = apis.Codecs.CodecForVersions(info.Serializer, apis.Codecs.UniversalDeserializer(), g.gv, internal)
	return generic.RESTOptions{
		StorageConfig: cfg.ForResource(gr), Decorator: genericregistry.StorageWithCacher(),
		EnableGarbageCollection: true, DeleteCollectionWorkers: 8,
		ResourcePrefix:            "/" + gr.Group + "/" + gr.Resource,
		StorageObjectCountTracker: cfg.StorageObjectCountTracker,
	}, nil
}

// newStore builds the store of a resource and, if it has one, the store of its
// status subresource.
func newStore(base storagebackend.Config, r *Resource) (*genericregistry.Store, *genericregistry.Store, error) {
	gr := r.GroupVersionResource().GroupResource()
	plain := newStrategy(r)
	store := &genericregistry.Store{
		NewFunc: r.newObject, NewListFunc: r.newList,
		DefaultQualifiedResource:  gr,
		SingularQualifiedResource: r.GroupVersion.WithResource(r.Singular).GroupResource(),
		PredicateFunc: func(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: r.attrs, IndexFields: r.indexFields()}
		},
		CreateStrategy: plain, UpdateStrategy: plain, DeleteStrategy: plain, ResetFieldsStrategy: plain,
		TableConvertor:      r.table,
		ReturnDeletedObject: r.Kind == "Pod",
	}
	if r.ttlSeconds > 0 {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return r.ttlSeconds, nil }
	}
	if store.TableConvertor == nil {
		store.TableConvertor = rest.NewDefaultTableConvertor(gr)
	}
	options := &generic.StoreOptions{RESTOptions: protobufOptions{base, r.GroupVersion}, AttrFunc: r.attrs}
	if r.Kind == "Pod" {
		store.DeleteStrategy = podStrategy{plain}
		indexPodsByNode(options)
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return nil, nil, err
	}
	if !r.status {
		return store, nil, nil
	}
	status := *store
	status.UpdateStrategy, status.ResetFieldsStrategy = statusStrategy{plain}, statusStrategy{plain}
	return store, &status, nil
}

const nodeNameField = "spec.nodeName"

func (r *Resource) indexFields() []string {
	if r.Kind == "Pod" {
		return []string{nodeNameField}
	}
	return nil
}

// indexPodsByNode lets each kubelet's watch see its own pods only.
func indexPodsByNode(o *generic.StoreOptions) {
	o.TriggerFunc = storage.IndexerFuncs{nodeNameField: func(obj runtime.Object) string { return obj.(*corev1.Pod).Spec.NodeName }}
	o.Indexers = &cache.Indexers{storage.FieldIndex(nodeNameField): func(obj any) ([]string, error) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, fmt.Errorf("not a pod: %T", obj)
		}
		return []string{pod.Spec.NodeName}, nil
	}}
}
