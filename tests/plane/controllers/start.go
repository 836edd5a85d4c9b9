package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"lockstep/tests/plane/registry"

	extinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	quota "k8s.io/apiserver/pkg/quota/v1"
)

// Deps is what the controllers work with.
type Deps struct {
	Client   kubernetes.Interface
	Metadata metadata.Interface
	// Collector is the same as the garbage collector's service account, whom
	// admission policies judge like anybody.
	Collector metadata.Interface
	// Informers is shared; the caller starts it after Start.
	Informers informers.SharedInformerFactory
	CRDs      extinformers.SharedInformerFactory
	Stores    *registry.Stores
	Quotas    quota.Configuration
	// NativeScheduling says whether scheduling.k8s.io is served.
	NativeScheduling bool
}

// starts are the controllers by the names that a plane's flag knows.
var starts = map[string]func(context.Context, Deps){
	"aggregation":    startAggregation,
	"budgets":        startBudgets,
	"garbage":        startGarbage,
	"namespaces":     startNamespaces,
	"node-lifecycle": startNodeLifecycle,
	"pod-garbage":    startPodGC,
	"quotas":         startQuotas,
}

// Names lists the controllers.
func Names() []string { return slices.Sorted(maps.Keys(starts)) }

// Start starts the controllers named.
func Start(ctx context.Context, d Deps, names []string) {
	for _, name := range names {
		if start := starts[name]; start != nil {
			start(ctx, d)
		}
	}
}

// everyTick calls f until the context ends.
func everyTick(ctx context.Context, period time.Duration, f func()) {
	wait.UntilWithContext(ctx, func(context.Context) { f() }, period)
}

// unwrap is the last known state of a deleted object.
func unwrap(obj any) any {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return obj
}

// onAny calls f for every event of an informer with the object's last state.
func onAny(informer cache.SharedIndexInformer, f func(obj any)) {
	// The error says that the informer has stopped, and then so do we.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: f, UpdateFunc: func(_, obj any) { f(obj) }, DeleteFunc: func(obj any) { f(unwrap(obj)) },
	})
}

// work runs n workers over the queue until the context ends; a failed key is
// tried again with back-off.
func work[K comparable](ctx context.Context, n int, q workqueue.TypedRateLimitingInterface[K], sync func(K) error) {
	for range n {
		go func() {
			for {
				key, quit := q.Get()
				if quit {
					return
				}
				if err := sync(key); err != nil && !apierrors.IsNotFound(err) {
					q.AddRateLimited(key)
				} else {
					q.Forget(key)
				}
				q.Done(key)
			}
		}()
	}
	go func() {
		<-ctx.Done()
		q.ShutDown()
	}()
}

func newQueue[K comparable](base, most time.Duration) workqueue.TypedRateLimitingInterface[K] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[K](base, most))
}
