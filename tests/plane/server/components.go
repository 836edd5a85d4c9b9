package server

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"lockstep/tests/plane/admission"
	"lockstep/tests/plane/apis"
	"lockstep/tests/plane/auth"
	"lockstep/tests/plane/binder"
	"lockstep/tests/plane/controllers"
	"lockstep/tests/plane/registry"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// startComponents starts the stand-ins for kube-controller-manager and
// kube-scheduler, then the informers that all of them share.
func (p *plane) startComponents(ctx context.Context, custom *apiextensionsapiserver.CustomResourceDefinitions, stores *registry.Stores) error {
	objects, err := metadata.NewForConfig(p.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("metadata client: %w", err)
	}
	collector, err := metadata.NewForConfig(p.impersonating(auth.GarbageCollector))
	if err != nil {
		return fmt.Errorf("metadata client: %w", err)
	}
	if err := registry.IndexPodsByNode(p.informers.Core().V1().Pods().Informer()); err != nil {
		return fmt.Errorf("index of pods: %w", err)
	}
	controllers.Start(ctx, controllers.Deps{
		Client: p.client, Metadata: objects, Collector: collector, Informers: p.informers, CRDs: custom.Informers,
		Stores: stores, Quotas: admission.NewQuotaConfiguration(p.informers), NativeScheduling: p.options.NativeScheduling,
	}, p.options.Components)
	if slices.Contains(p.options.Components, binderName) {
		broadcaster := record.NewBroadcaster(record.WithContext(ctx))
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.client.CoreV1().Events("")})
		binder.Start(ctx, p.informers, stores, broadcaster.NewRecorder(apis.Scheme, corev1.EventSource{Component: corev1.DefaultSchedulerName}))
	}
	p.informers.Start(ctx.Done())
	return nil
}

// impersonating is the loopback as a service account of kube-system.
func (p *plane) impersonating(account string) *clientrest.Config {
	config := clientrest.CopyConfig(p.config.LoopbackClientConfig)
	config.Impersonate = clientrest.ImpersonationConfig{
		UserName: serviceaccount.MakeUsername(metav1.NamespaceSystem, account),
		Groups:   append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated),
	}
	return config
}
