package apis

import (
	"fmt"
	"strings"

	eventsv1 "k8s.io/api/events/v1"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

var fieldLabels = map[schema.GroupVersionKind][]string{
	corev1.SchemeGroupVersion.WithKind("Pod"):       {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"},
	corev1.SchemeGroupVersion.WithKind("Node"):      {"spec.unschedulable"},
	corev1.SchemeGroupVersion.WithKind("Namespace"): {"status.phase"},
	corev1.SchemeGroupVersion.WithKind("Secret"):    {"type"},
	corev1.SchemeGroupVersion.WithKind("Event"):     {"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"},
	eventsv1.SchemeGroupVersion.WithKind("Event"):   {"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "reason", "reportingController", "type"},
	batchv1.SchemeGroupVersion.WithKind("Job"):      {"status.successful"},
}

func addFieldLabels() {
	for gvk, labels := range fieldLabels {
		ok := map[string]bool{"metadata.name": true, "metadata.namespace": true}
		for _, l := range labels {
			ok[l] = true
		}
		kind := gvk.Kind
		utilruntime.Must(Scheme.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
			if !ok[label] {
				return "", "", fmt.Errorf("%q is not a known field selector for %s", label, kind)
			}
			if strings.HasPrefix(label, "regarding.") {
				label = "involvedObject." + strings.TrimPrefix(label, "regarding.")
			}
			if label == "reportingController" {
				label = "reportingComponent"
			}
			return label, value, nil
		}))
	}
}
