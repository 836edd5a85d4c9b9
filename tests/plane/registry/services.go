package registry

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	podvalidation "lockstep/tests/plane/validation"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
)

func services() *Resource {
	return &Resource{
		GroupVersion: corev1.SchemeGroupVersion, Name: "services", Singular: "service", Kind: "Service",
		status: true, short: []string{"svc"}, categories: []string{"all"}, table: serviceTable,
		// KEP-5311: a DNS-1123 label, where older releases asked for DNS-1035.
		validName:     utilvalidation.IsDNS1123Label,
		prepareCreate: func(obj runtime.Object) { allocateIP(obj.(*corev1.Service)) },
		validate:      func(obj runtime.Object) field.ErrorList { return podvalidation.Service(obj.(*corev1.Service)) },
		prepareUpdate: func(obj, old runtime.Object) {
			svc, was := obj.(*corev1.Service), old.(*corev1.Service)
			if svc.Spec.ClusterIP == "" && svc.Spec.Type != corev1.ServiceTypeExternalName {
				svc.Spec.ClusterIP, svc.Spec.ClusterIPs = was.Spec.ClusterIP, was.Spec.ClusterIPs
			}
		},
		validateUpdate: func(obj, old runtime.Object) field.ErrorList {
			return podvalidation.ServiceUpdate(obj.(*corev1.Service), old.(*corev1.Service))
		},
	}
}

// allocateIP draws an address of 10.96.0.0/16. Two services may draw the same
// one: nothing listens there.
func allocateIP(svc *corev1.Service) {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if svc.Spec.ClusterIP == "" {
		svc.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254))
	}
	svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
}
