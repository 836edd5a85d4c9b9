package server

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	flows "k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/auth"
)

// bootstrap creates what every cluster has: namespaces, priority classes, flow schemas with their
// levels, default roles, and the kubernetes service with the server's own address.
func bootstrap(ctx context.Context, client kubernetes.Interface, port int) error {
	var creates []func() error
	create := func(f func() error) { creates = append(creates, f) }
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		create(func() error {
			_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return err
		})
	}
	for name, value := range map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000} {
		create(func() error {
			_, err := client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}, metav1.CreateOptions{})
			return err
		})
	}
	for _, level := range slices.Concat(flows.MandatoryPriorityLevelConfigurations, flows.SuggestedPriorityLevelConfigurations) {
		create(func() error {
			_, err := client.FlowcontrolV1().PriorityLevelConfigurations().Create(ctx, level.DeepCopy(), metav1.CreateOptions{})
			return err
		})
	}
	for _, schema := range slices.Concat(flows.MandatoryFlowSchemas, flows.SuggestedFlowSchemas) {
		create(func() error {
			_, err := client.FlowcontrolV1().FlowSchemas().Create(ctx, schema.DeepCopy(), metav1.CreateOptions{})
			return err
		})
	}
	for _, role := range auth.DefaultRoles() {
		create(func() error {
			_, err := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
			return err
		})
	}
	for _, binding := range auth.DefaultBindings() {
		create(func() error {
			_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
			return err
		})
	}
	create(func() error {
		_, err := client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, kubernetesService(), metav1.CreateOptions{})
		return err
	})
	for _, f := range creates {
		if err := persistently(ctx, f); err != nil {
			return err
		}
	}
	return persistently(ctx, func() error { return ensureEndpoints(ctx, client, int32(port)) })
}

// persistently tries until it works or exists: storage is not ready at once.
func persistently(ctx context.Context, f func() error) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		err := f()
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
}

const kubernetesName = "kubernetes"

func kubernetesService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetesName, Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1",
			Ports:     []corev1.ServicePort{{Name: "https", Port: 443, TargetPort: intstr.FromInt32(6443), Protocol: corev1.ProtocolTCP}},
		},
	}
}

// ensureEndpoints points the service at this server, whose port may differ from
// the one it had before a restart.
func ensureEndpoints(ctx context.Context, client kubernetes.Interface, port int32) error {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: kubernetesName, Labels: map[string]string{discoveryv1.LabelServiceName: kubernetesName}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	slices := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	live, err := slices.Get(ctx, kubernetesName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, slice, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	live.Ports = slice.Ports
	_, err = slices.Update(ctx, live, metav1.UpdateOptions{})
	return err
}
