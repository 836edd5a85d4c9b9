// Package apis is the scheme of the built-in types: versions, conversions,
// field selectors and defaults.
package apis

import (
	"reflect"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// The scheme registers every versioned Go type twice: under its own version
// and under the group's internal version. No conversion code is needed, because
// converting between two versions that share a Go type only rewrites the kind.
var (
	Scheme = runtime.NewScheme()
	Codecs = serializer.NewCodecFactory(Scheme)
)

func init() {
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, authorizationv1.AddToScheme,
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme,
		policyv1.AddToScheme, schedulingv1.AddToScheme, schedulingv1beta1.AddToScheme,
		discoveryv1.AddToScheme, rbacv1.AddToScheme, admissionregistrationv1.AddToScheme,
		eventsv1.AddToScheme, autoscalingv1.AddToScheme, storagev1.AddToScheme, flowcontrolv1.AddToScheme,
	} {
		utilruntime.Must(add(Scheme))
	}
	hub := func(gv schema.GroupVersion) {
		internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
		for kind, t := range Scheme.KnownTypes(gv) {
			if !strings.HasPrefix(t.PkgPath(), "k8s.io/api/") || Scheme.Recognizes(internal.WithKind(kind)) {
				continue
			}
			Scheme.AddKnownTypeWithName(internal.WithKind(kind), reflect.New(t).Interface().(runtime.Object))
		}
	}
	for _, gv := range []schema.GroupVersion{
		corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion,
		coordinationv1.SchemeGroupVersion, policyv1.SchemeGroupVersion,
		schedulingv1.SchemeGroupVersion, schedulingv1beta1.SchemeGroupVersion, // v1 first: it owns PriorityClass
		discoveryv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion, admissionregistrationv1.SchemeGroupVersion,
		autoscalingv1.SchemeGroupVersion, authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion,
		storagev1.SchemeGroupVersion, flowcontrolv1.SchemeGroupVersion,
	} {
		hub(gv)
	}
	utilruntime.Must(Scheme.SetVersionPriority(schedulingv1.SchemeGroupVersion, schedulingv1beta1.SchemeGroupVersion))
	// events.k8s.io/v1 Event is a view of the core Event: the hub type is core's.
	evInternal := schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}
	Scheme.AddKnownTypeWithName(evInternal.WithKind("Event"), &corev1.Event{})
	Scheme.AddKnownTypeWithName(evInternal.WithKind("EventList"), &corev1.EventList{})
	addEventConversions()
	addDefaults()
	addFieldLabels()
}
