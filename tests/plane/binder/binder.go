package binder

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"lockstep/tests/plane/registry"

	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

const (
	bindWorkers  = 24
	retryPeriod  = 100 * time.Millisecond
	bindBackoff  = 200 * time.Millisecond
	workCapacity = 4096
)

// Binder binds pods whose schedulerName is the default one. It writes to the
// registries in process, so its binds are in no audit log.
type Binder struct {
	stores   *registry.Stores
	pods     cache.Indexer
	events   record.EventRecorder
	switches atomic.Pointer[Switches]

	mu    sync.Mutex
	wake  *sync.Cond
	queue *queue
	state *state
	// stuck are the keys of pods that fitted nowhere, until something changes, and
	// whether another pod that is placed may be that.
	stuck map[string]bool
}

// Start follows pods, nodes and switches and binds until the context ends; the
// caller starts the informers afterwards.
func Start(ctx context.Context, inf informers.SharedInformerFactory, stores *registry.Stores, events record.EventRecorder) {
	core := inf.Core().V1()
	pods, nodes, configs := core.Pods().Informer(), core.Nodes().Informer(), core.ConfigMaps().Informer()
	claims, volumes, classes := core.PersistentVolumeClaims(), core.PersistentVolumes(), inf.Storage().V1().StorageClasses()
	namespaces := core.Namespaces()
	b := &Binder{stores: stores, pods: pods.GetIndexer(), events: events, queue: newQueue(), state: newState(), stuck: map[string]bool{}}
	b.state.storage = storage{claims.Lister(), volumes.Lister(), classes.Lister()}
	b.state.namespaceLabels = func(name string) labels.Set {
		if ns, err := namespaces.Lister().Get(name); err == nil {
			return ns.Labels
		}
		return nil
	}
	b.wake = sync.NewCond(&b.mu)
	b.switches.Store(&Switches{})
	follow(nodes, b.setNode, b.dropNode)
	follow(pods, b.setPod, b.dropPod)
	follow(configs, b.setSwitches, func(cm *corev1.ConfigMap) { b.setSwitches(&corev1.ConfigMap{ObjectMeta: cm.ObjectMeta}) })
	for _, kind := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer(), classes.Informer()} {
		changed := func(any) { b.freed() }
		_, _ = kind.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed})
	}
	synced := []cache.InformerSynced{pods.HasSynced, nodes.HasSynced, configs.HasSynced, namespaces.Informer().HasSynced,
		claims.Informer().HasSynced, volumes.Informer().HasSynced, classes.Informer().HasSynced}
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			b.run(ctx)
		}
	}()
}

// follow calls set and drop with the objects of an informer.
func follow[T any](informer cache.SharedIndexInformer, set, drop func(*T)) {
	as := func(f func(*T)) func(any) {
		return func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(*T); ok {
				f(o)
			}
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: as(set), UpdateFunc: func(_, obj any) { as(set)(obj) }, DeleteFunc: as(drop)})
}

func (b *Binder) setSwitches(cm *corev1.ConfigMap) {
	if cm.Namespace != metav1.NamespaceSystem || cm.Name != SwitchesName {
		return
	}
	b.switches.Store(readSwitches(cm.Data))
	b.freed()
}

// freed has the stuck pods looked at again.
func (b *Binder) freed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.freed = true
}

func (b *Binder) setNode(node *corev1.Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.setNode(node)
}

func (b *Binder) dropNode(node *corev1.Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.dropNode(node.Name)
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// schedulable says whether the pod waits for this binder.
func schedulable(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.Spec.SchedulerName == corev1.DefaultSchedulerName && len(pod.Spec.SchedulingGates) == 0 &&
		pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending
}

func (b *Binder) setPod(pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case registry.Terminal(pod):
		b.forget(pod)
	case pod.Spec.NodeName != "":
		b.state.nominate(pod, "")
		b.state.place(pod, pod.Spec.NodeName)
		delete(b.stuck, key(pod))
	default:
		b.state.nominate(pod, pod.Status.NominatedNodeName) // gated pods hold their capacity, too
		if _, stuck := b.stuck[key(pod)]; !stuck && !b.assumed(pod) && schedulable(pod) {
			b.push(pod)
		}
	}
}

func (b *Binder) dropPod(pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(pod)
}

func (b *Binder) forget(pod *corev1.Pod) {
	b.state.nominate(pod, "")
	b.state.place(pod, "")
	delete(b.stuck, key(pod))
}

func (b *Binder) push(pod *corev1.Pod) {
	b.queue.push(key(pod), priority(pod))
	b.wake.Signal()
}

// current is the pod as the cache has it, if it still waits.
func (b *Binder) current(key string) (*corev1.Pod, bool) {
	obj, ok, err := b.pods.GetByKey(key)
	if !ok || err != nil {
		return nil, false
	}
	pod, ok := obj.(*corev1.Pod)
	return pod, ok && schedulable(pod)
}

// assumed says whether the pod is about to be bound.
func (b *Binder) assumed(pod *corev1.Pod) bool {
	_, placed := b.state.placed[pod.UID]
	return placed
}

type assignment struct {
	pod  *corev1.Pod
	node string
}

func (b *Binder) run(ctx context.Context) {
	work := make(chan assignment, workCapacity)
	for range bindWorkers {
		go func() {
			for a := range work {
				b.bind(a)
			}
		}()
	}
	defer close(work)
	go func() {
		<-ctx.Done()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.wake.Broadcast()
	}()
	go wait.UntilWithContext(ctx, func(context.Context) { b.retryStuck() }, retryPeriod)
	for ctx.Err() == nil {
		b.step(ctx, work)
	}
}

// retryStuck queues the stuck pods again once something has changed.
func (b *Binder) retryStuck() {
	b.mu.Lock()
	defer b.mu.Unlock()
	freed, moved := b.state.freed, b.state.moved
	b.state.freed, b.state.moved = false, false
	for k, needsNeighbours := range b.stuck {
		if !freed && !(moved && needsNeighbours) {
			continue
		}
		delete(b.stuck, k)
		if pod, ok := b.current(k); ok {
			b.push(pod)
		}
	}
}

// step takes one pod from the queue and decides about it.
func (b *Binder) step(ctx context.Context, work chan<- assignment) {
	b.mu.Lock()
	for len(b.queue.items) == 0 && ctx.Err() == nil {
		b.wake.Wait()
	}
	if ctx.Err() != nil {
		b.mu.Unlock()
		return
	}
	pod, ok := b.current(b.queue.pop().key)
	if !ok || b.assumed(pod) {
		b.mu.Unlock()
		return
	}
	q := b.state.ask(pod, b.switches.Load())
	node, refused := b.state.pick(q)
	if node != "" {
		b.state.place(pod, node)
		b.mu.Unlock()
		work <- assignment{pod, node}
		return
	}
	b.stuck[key(pod)] = q.needsNeighbours()
	evict, why := b.state.preempt(q, refused)
	if evict != nil {
		b.state.nominate(pod, evict.node)
	}
	b.mu.Unlock()
	b.markUnschedulable(pod, refused.String()+why, evict)
	if evict != nil {
		b.evict(pod, evict)
	}
}

func (b *Binder) bind(a assignment) {
	target := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: a.pod.Name, UID: a.pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: a.node}}
	err := b.stores.Binding.Bind(registry.InProcess(a.pod.Namespace), a.pod.Name, target, false)
	if err == nil {
		b.events.Eventf(a.pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s to %s", key(a.pod), a.node)
		return
	}
	klog.V(2).InfoS("bind failed", "pod", key(a.pod), "err", err)
	b.mu.Lock()
	b.state.place(a.pod, "")
	b.mu.Unlock()
	if apierrors.IsNotFound(err) {
		return
	}
	time.AfterFunc(bindBackoff, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if pod, ok := b.current(key(a.pod)); ok {
			b.push(pod)
		}
	})
}
