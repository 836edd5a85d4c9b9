package registry

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const byNode = "byNode"

// IndexPodsByNode makes PodsOn and NodesWithPods work on the cache of this informer, which must
// not run yet.
func IndexPodsByNode(pods cache.SharedIndexInformer) error {
	return pods.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}})
}

// NodesWithPods lists the names of nodes that pods are bound to, whether these
// nodes exist or not.
func NodesWithPods(pods cache.Indexer) []string { return pods.ListIndexFuncValues(byNode) }

// PodsOn lists the pods that are bound to a node.
func PodsOn(pods cache.Indexer, node string) []*corev1.Pod {
	objs, err := pods.ByIndex(byNode, node)
	if err != nil {
		return nil // only without the index, which is made at start
	}
	out := make([]*corev1.Pod, 0, len(objs))
	for _, obj := range objs {
		if pod, ok := obj.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out
}
