package registry

import (
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podvalidation "lockstep/tests/plane/validation"

	"k8s.io/apimachinery/pkg/api/validation/path"
)

// Catalog lists the built-in resources that are stored. With native scheduling
// that includes scheduling.k8s.io/v1beta1 Workloads and PodGroups.
func Catalog(nativeScheduling bool) []*Resource {
	list := []*Resource{namespaces(), pods(nativeScheduling), services(), nodes(), events(), priorityClasses()}
	list = append(list, coreResources()...)
	list = append(list, workloadControllers()...)
	list = append(list, accessControl()...)
	list = append(list, admissionControl()...)
	list = append(list, flowControl()...)
	if nativeScheduling {
		list = append(list, schedulingGroups()...)
	}
	return list
}

func nodes() *Resource {
	return &Resource{
		GroupVersion: corev1.SchemeGroupVersion, Name: "nodes", Singular: "node", Kind: "Node", ClusterScoped: true,
		status: true, statusOnCreate: true, short: []string{"no"}, table: nodeTable,
		attributes: func(obj runtime.Object) fields.Set {
			return fields.Set{"spec.unschedulable": fmt.Sprint(obj.(*corev1.Node).Spec.Unschedulable)}
		},
	}
}

const eventTTLSeconds = 3600

func events() *Resource {
	return &Resource{
		GroupVersion: corev1.SchemeGroupVersion, Name: "events", Singular: "event", Kind: "Event", short: []string{"ev"},
		ttlSeconds: eventTTLSeconds, createOnUpdate: true, table: eventTable,
		attributes: func(obj runtime.Object) fields.Set {
			e := obj.(*corev1.Event)
			source := e.Source.Component
			if source == "" {
				source = e.ReportingController
			}
			o := e.InvolvedObject
			return fields.Set{
				"involvedObject.kind": o.Kind, "involvedObject.namespace": o.Namespace, "involvedObject.name": o.Name, "involvedObject.uid": string(o.UID),
				"involvedObject.apiVersion": o.APIVersion, "involvedObject.resourceVersion": o.ResourceVersion, "involvedObject.fieldPath": o.FieldPath,
				"reason": e.Reason, "reportingComponent": e.ReportingController, "source": source, "type": e.Type,
			}
		},
	}
}

func priorityClasses() *Resource {
	return &Resource{
		GroupVersion: schedulingv1.SchemeGroupVersion, Name: "priorityclasses", Singular: "priorityclass", Kind: "PriorityClass", ClusterScoped: true, short: []string{"pc"},
		table: priorityClassTable,
		validate: func(obj runtime.Object) field.ErrorList {
			return podvalidation.PriorityClass(obj.(*schedulingv1.PriorityClass))
		},
		validateUpdate: func(obj, old runtime.Object) field.ErrorList {
			return podvalidation.PriorityClassUpdate(obj.(*schedulingv1.PriorityClass), old.(*schedulingv1.PriorityClass))
		},
	}
}

func coreResources() []*Resource {
	core := corev1.SchemeGroupVersion
	lease := func(obj runtime.Object) field.ErrorList { return podvalidation.Lease(obj.(*coordinationv1.Lease)) }
	return []*Resource{
		{GroupVersion: core, Name: "configmaps", Singular: "configmap", Kind: "ConfigMap", short: []string{"cm"}, validateUpdate: func(obj, old runtime.Object) field.ErrorList {
			return podvalidation.ConfigMapUpdate(obj.(*corev1.ConfigMap), old.(*corev1.ConfigMap))
		}},
		{GroupVersion: core, Name: "secrets", Singular: "secret", Kind: "Secret", prepareCreate: foldStringData, prepareUpdate: func(obj, _ runtime.Object) { foldStringData(obj) },
			attributes: func(obj runtime.Object) fields.Set { return fields.Set{"type": string(obj.(*corev1.Secret).Type)} }},
		{GroupVersion: core, Name: "serviceaccounts", Singular: "serviceaccount", Kind: "ServiceAccount", short: []string{"sa"}},
		{GroupVersion: core, Name: "persistentvolumeclaims", Singular: "persistentvolumeclaim", Kind: "PersistentVolumeClaim", status: true, short: []string{"pvc"}},
		{GroupVersion: core, Name: "persistentvolumes", Singular: "persistentvolume", Kind: "PersistentVolume", ClusterScoped: true, status: true, short: []string{"pv"}},
		{GroupVersion: storagev1.SchemeGroupVersion, Name: "storageclasses", Singular: "storageclass", Kind: "StorageClass", ClusterScoped: true, short: []string{"sc"}},
		{GroupVersion: core, Name: "resourcequotas", Singular: "resourcequota", Kind: "ResourceQuota", status: true, short: []string{"quota"}},
		{GroupVersion: coordinationv1.SchemeGroupVersion, Name: "leases", Singular: "lease", Kind: "Lease", createOnUpdate: true, table: leaseTable, validate: lease},
		{GroupVersion: discoveryv1.SchemeGroupVersion, Name: "endpointslices", Singular: "endpointslice", Kind: "EndpointSlice"},
		{GroupVersion: policyv1.SchemeGroupVersion, Name: "poddisruptionbudgets", Singular: "poddisruptionbudget", Kind: "PodDisruptionBudget", status: true, generation: true, short: []string{"pdb"},
			validate: func(obj runtime.Object) field.ErrorList {
				return podvalidation.DisruptionBudget(obj.(*policyv1.PodDisruptionBudget))
			}},
	}
}

// foldStringData does what the write-only field stringData is for.
func foldStringData(obj runtime.Object) {
	secret := obj.(*corev1.Secret)
	for k, v := range secret.StringData {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		secret.Data[k] = []byte(v)
	}
	secret.StringData = nil
}

// flowControl is followed by the library's API Priority and Fairness.
func flowControl() []*Resource {
	flow := flowcontrolv1.SchemeGroupVersion
	return []*Resource{
		{GroupVersion: flow, Name: "flowschemas", Singular: "flowschema", Kind: "FlowSchema", ClusterScoped: true, status: true, generation: true},
		{GroupVersion: flow, Name: "prioritylevelconfigurations", Singular: "prioritylevelconfiguration", Kind: "PriorityLevelConfiguration", ClusterScoped: true, status: true, generation: true},
	}
}

// workloadControllers are storage only: no controller here makes their pods.
func workloadControllers() []*Resource {
	apps, all := appsv1.SchemeGroupVersion, []string{"all"}
	return []*Resource{
		{GroupVersion: batchv1.SchemeGroupVersion, Name: "jobs", Singular: "job", Kind: "Job", status: true, generation: true, categories: all,
			validate: func(obj runtime.Object) field.ErrorList { return podvalidation.Job(obj.(*batchv1.Job)) }, validateUpdate: unchecked},
		{GroupVersion: apps, Name: "deployments", Singular: "deployment", Kind: "Deployment", status: true, generation: true, short: []string{"deploy"}, categories: all,
			validate: func(obj runtime.Object) field.ErrorList { return podvalidation.Deployment(obj.(*appsv1.Deployment)) }, validateUpdate: unchecked},
		{GroupVersion: apps, Name: "daemonsets", Singular: "daemonset", Kind: "DaemonSet", status: true, generation: true, short: []string{"ds"}, categories: all,
			validate: func(obj runtime.Object) field.ErrorList { return podvalidation.DaemonSet(obj.(*appsv1.DaemonSet)) }, validateUpdate: unchecked},
		{GroupVersion: apps, Name: "statefulsets", Singular: "statefulset", Kind: "StatefulSet", status: true, generation: true, short: []string{"sts"}, categories: all},
	}
}

// unchecked leaves updates of a kind to the checks that every object gets.
func unchecked(_, _ runtime.Object) field.ErrorList { return nil }

func accessControl() []*Resource {
	rbac, name := rbacv1.SchemeGroupVersion, path.IsValidPathSegmentName
	return []*Resource{
		{GroupVersion: rbac, Name: "roles", Singular: "role", Kind: "Role", validName: name},
		{GroupVersion: rbac, Name: "rolebindings", Singular: "rolebinding", Kind: "RoleBinding", validName: name, validateUpdate: roleRefFrozen},
		{GroupVersion: rbac, Name: "clusterroles", Singular: "clusterrole", Kind: "ClusterRole", ClusterScoped: true, validName: name},
		{GroupVersion: rbac, Name: "clusterrolebindings", Singular: "clusterrolebinding", Kind: "ClusterRoleBinding", ClusterScoped: true, validName: name, validateUpdate: roleRefFrozen},
	}
}

func roleRefFrozen(obj, old runtime.Object) field.ErrorList {
	if sameField(obj, old, "RoleRef") {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), structField(obj, "RoleRef").Interface(), "cannot change roleRef")}
}

func admissionControl() []*Resource {
	adm := admissionregistrationv1.SchemeGroupVersion
	return []*Resource{
		{GroupVersion: adm, Name: "validatingadmissionpolicies", Singular: "validatingadmissionpolicy", Kind: "ValidatingAdmissionPolicy", ClusterScoped: true, status: true, generation: true},
		{GroupVersion: adm, Name: "validatingadmissionpolicybindings", Singular: "validatingadmissionpolicybinding", Kind: "ValidatingAdmissionPolicyBinding", ClusterScoped: true},
		{GroupVersion: adm, Name: "mutatingadmissionpolicies", Singular: "mutatingadmissionpolicy", Kind: "MutatingAdmissionPolicy", ClusterScoped: true},
		{GroupVersion: adm, Name: "mutatingadmissionpolicybindings", Singular: "mutatingadmissionpolicybinding", Kind: "MutatingAdmissionPolicyBinding", ClusterScoped: true},
		{GroupVersion: adm, Name: "validatingwebhookconfigurations", Singular: "validatingwebhookconfiguration", Kind: "ValidatingWebhookConfiguration", ClusterScoped: true},
		{GroupVersion: adm, Name: "mutatingwebhookconfigurations", Singular: "mutatingwebhookconfiguration", Kind: "MutatingWebhookConfiguration", ClusterScoped: true},
	}
}

func schedulingGroups() []*Resource {
	v := schedulingv1beta1.SchemeGroupVersion
	return []*Resource{
		{GroupVersion: v, Name: "workloads", Singular: "workload", Kind: "Workload", generation: true,
			validate: func(obj runtime.Object) field.ErrorList {
				return podvalidation.Workload(obj.(*schedulingv1beta1.Workload))
			},
			validateUpdate: func(obj, old runtime.Object) field.ErrorList {
				return podvalidation.WorkloadUpdate(obj.(*schedulingv1beta1.Workload), old.(*schedulingv1beta1.Workload))
			}},
		{GroupVersion: v, Name: "podgroups", Singular: "podgroup", Kind: "PodGroup", status: true, generation: true,
			validate: func(obj runtime.Object) field.ErrorList {
				return podvalidation.PodGroup(obj.(*schedulingv1beta1.PodGroup))
			},
			validateUpdate: func(obj, old runtime.Object) field.ErrorList {
				return podvalidation.PodGroupUpdate(obj.(*schedulingv1beta1.PodGroup), old.(*schedulingv1beta1.PodGroup))
			}},
	}
}
