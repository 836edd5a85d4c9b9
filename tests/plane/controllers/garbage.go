package controllers

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
)

// node is an object as the garbage collector sees it.
type node struct {
	uid             types.UID
	version         string
	resource        schema.GroupVersionResource
	namespace, name string
	owners          []metav1.OwnerReference
	finalizers      []string
	deleting        bool
}

func (n *node) has(finalizer string) bool { return slices.Contains(n.finalizers, finalizer) }

func (n *node) foreground() bool { return n.deleting && n.has(metav1.FinalizerDeleteDependents) }

// kind is how objects of a kind are addressed.
type kind struct {
	resource   schema.GroupVersionResource
	namespaced bool
}

// collector deletes what no owner holds any more: background, foreground and
// orphan, over built-in and custom resources.
type collector struct {
	Deps
	queue workqueue.TypedRateLimitingInterface[types.UID]

	mu         sync.RWMutex
	nodes      map[types.UID]*node
	dependents map[types.UID]map[types.UID]*node
	kinds      map[schema.GroupVersionKind]kind
}

const collectorWorkers = 8

func startGarbage(ctx context.Context, d Deps) {
	g := &collector{
		Deps: d, queue: newQueue[types.UID](20*time.Millisecond, 5*time.Second),
		nodes: map[types.UID]*node{}, dependents: map[types.UID]map[types.UID]*node{}, kinds: map[schema.GroupVersionKind]kind{},
	}
	synced := g.followBuiltins(ctx)
	go func() {
		cache.WaitForCacheSync(ctx.Done(), synced...)
		g.followCustomResources(ctx)
		work(ctx, collectorWorkers, g.queue, g.process)
	}()
}

func (g *collector) upsert(resource schema.GroupVersionResource, m metav1.Object) {
	n := &node{m.GetUID(), m.GetResourceVersion(), resource, m.GetNamespace(), m.GetName(), m.GetOwnerReferences(), m.GetFinalizers(), m.GetDeletionTimestamp() != nil}
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[n.uid]
	if old != nil {
		for _, o := range old.owners {
			delete(g.dependents[o.UID], n.uid)
		}
	}
	g.nodes[n.uid] = n
	for _, o := range n.owners {
		if g.dependents[o.UID] == nil {
			g.dependents[o.UID] = map[types.UID]*node{}
		}
		g.dependents[o.UID][n.uid] = n
		if owner := g.nodes[o.UID]; owner != nil && owner.deleting {
			g.queue.Add(owner.uid)
		}
	}
	if len(n.owners) > 0 && (old == nil || len(old.owners) != len(n.owners) || n.deleting) {
		g.queue.Add(n.uid)
	}
	if n.deleting && (n.foreground() || n.has(metav1.FinalizerOrphanDependents)) && (old == nil || !old.deleting || len(old.finalizers) != len(n.finalizers)) {
		g.queue.Add(n.uid)
		for d := range g.dependents[n.uid] {
			g.queue.Add(d)
		}
	}
}

func (g *collector) remove(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		for _, o := range n.owners {
			delete(g.dependents[o.UID], uid)
			if owner := g.nodes[o.UID]; owner != nil && owner.deleting {
				g.queue.Add(owner.uid)
			}
		}
	}
	delete(g.nodes, uid)
	for d := range g.dependents[uid] {
		g.queue.Add(d)
	}
}

func (g *collector) lookUp(uid types.UID) (n *node, dependents []*node) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, d := range g.dependents[uid] {
		dependents = append(dependents, d)
	}
	return g.nodes[uid], dependents
}

func (g *collector) process(uid types.UID) error {
	n, dependents := g.lookUp(uid)
	switch {
	case n == nil:
		return nil
	case n.deleting && n.has(metav1.FinalizerOrphanDependents):
		for _, d := range dependents {
			if err := g.dropOwners(d, func(o metav1.OwnerReference) bool { return o.UID == uid }); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return g.dropFinalizer(n, metav1.FinalizerOrphanDependents)
	case n.foreground():
		return g.processForeground(n, dependents)
	case n.deleting || len(n.owners) == 0:
		return nil
	}
	return g.processDependent(n, dependents)
}

// processForeground lets an owner go once nothing blocks its deletion.
func (g *collector) processForeground(n *node, dependents []*node) error {
	blocked := false
	for _, d := range dependents {
		for _, o := range d.owners {
			blocked = blocked || o.UID == n.uid && ptr.Deref(o.BlockOwnerDeletion, false)
		}
		if !d.deleting {
			g.queue.Add(d.uid)
		}
	}
	if blocked {
		return nil
	}
	return g.dropFinalizer(n, metav1.FinalizerDeleteDependents)
}

// processDependent deletes an object none of whose owners is left, or drops the
// references to those that are gone.
func (g *collector) processDependent(n *node, dependents []*node) error {
	gone, solid, waiting, err := g.owners(n)
	if err != nil || len(gone) == 0 {
		return err
	}
	if solid > 0 {
		return g.dropOwners(n, func(o metav1.OwnerReference) bool { return gone[o.UID] })
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case waiting > 0 && len(dependents) > 0 || n.has(metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	case n.has(metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	}
	// Only as it was judged: its owner may just have let go of it, which the cache does not show yet.
	judged := &metav1.Preconditions{UID: &n.uid, ResourceVersion: &n.version}
	options := metav1.DeleteOptions{Preconditions: judged, PropagationPolicy: &policy}
	if n.resource.GroupResource() == corev1.Resource("pods") {
		return g.Stores.DeletePod(n.namespace, n.name, options)
	}
	return g.client(n.resource, n.namespace).Delete(context.Background(), n.name, options)
}

// owners sorts an object's owners: gone (deleted, or waiting for this object to
// go first), and solid.
func (g *collector) owners(n *node) (gone map[types.UID]bool, solid, waiting int, err error) {
	gone = map[types.UID]bool{}
	for _, o := range n.owners {
		g.mu.RLock()
		owner := g.nodes[o.UID]
		k, known := g.kinds[schema.FromAPIVersionAndKind(o.APIVersion, o.Kind)]
		g.mu.RUnlock()
		switch {
		case owner != nil && owner.namespace != "" && owner.namespace != n.namespace:
			gone[o.UID] = true
		case owner != nil && owner.foreground():
			waiting++
			gone[o.UID] = true
		case owner != nil || !known:
			solid++
		default: // not seen: ask the server, since caches of other kinds may lag
			exists, err := g.exists(k, n.namespace, o)
			if err != nil {
				return nil, 0, 0, err
			}
			if exists {
				solid++
			} else {
				gone[o.UID] = true
			}
		}
	}
	return gone, solid, waiting, nil
}

func (g *collector) exists(k kind, namespace string, o metav1.OwnerReference) (bool, error) {
	if !k.namespaced {
		namespace = ""
	}
	live, err := g.client(k.resource, namespace).Get(context.Background(), o.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && live.UID == o.UID, err
}
