package smoke

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"k8s.io/client-go/rest"
)

// startNodes creates nodes and plays their kubelets over HTTP, as far as these
// tests need: bound pods run and are ready, deleted ones go. A pod labelled
// end=CODE ends with that code.
func startNodes(ctx context.Context, p *plane, n int) error {
	for i := range n {
		name := fmt.Sprintf("node-%d", i)
		config := rest.CopyConfig(p.config)
		config.BearerToken = "node:" + name
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		if _, err := client.CoreV1().Nodes().Create(ctx, newNode(name, fmt.Sprintf("zone-%d", i%2)), metav1.CreateOptions{}); err != nil {
			return err
		}
		informer := cache.NewSharedInformer(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", fields.OneTermEqualSelector("spec.nodeName", name)), &corev1.Pod{}, 0)
		see := func(obj any) { go syncPod(ctx, client, obj.(*corev1.Pod)) }
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
			return err
		}
		go informer.Run(ctx.Done())
	}
	return nil
}

func newNode(name, zone string) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("8"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{
			Capacity: capacity, DeclaredFeatures: []string{"RestartAllContainersOnContainerExits"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}
}

// ownNode is a node that goes with its test. Pods of other tests would go with it, so only those that
// tolerate its taint get onto it.
func ownNode(name string) *corev1.Node {
	node := newNode(name, "zone-9")
	node.Spec.Taints = []corev1.Taint{{Key: "smoke", Value: name, Effect: corev1.TaintEffectNoSchedule}}
	return node
}

// on is what a pod says to get onto the node of its test.
func (k kubectl) on() string {
	return `"nodeSelector":{"kubernetes.io/hostname":"` + k.namespace + `"},"tolerations":[{"key":"smoke","operator":"Exists"}]`
}

func syncPod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) {
	pods := client.CoreV1().Pods(pod.Namespace)
	if pod.DeletionTimestamp != nil {
		if pod.DeletionGracePeriodSeconds == nil || *pod.DeletionGracePeriodSeconds > 0 {
			_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		}
		return
	}
	if pod.Status.Phase != corev1.PodPending {
		return
	}
	next := pod.DeepCopy()
	next.Status.Phase = corev1.PodRunning
	state, ready := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now())}}, corev1.ConditionTrue
	switch pod.Labels["end"] {
	case "0":
		next.Status.Phase, ready = corev1.PodSucceeded, corev1.ConditionFalse
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed"}}
	case "1":
		next.Status.Phase, ready = corev1.PodFailed, corev1.ConditionFalse
		state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}
	}
	next.Status.Conditions = append(next.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready})
	next.Status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		next.Status.ContainerStatuses = append(next.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: state, Ready: ready == corev1.ConditionTrue})
	}
	_, _ = pods.UpdateStatus(ctx, next, metav1.UpdateOptions{}) // a conflict comes back as an event
}
