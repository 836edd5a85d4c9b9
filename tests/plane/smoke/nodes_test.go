package smoke

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// silentNode creates a node whose kubelet renewed its lease once, for a second. It has room for no pod,
// so that none of another test is bound to it before it is tainted and goes with it.
func silentNode(t *testing.T, name string) {
	t.Helper()
	nodes, leases := shared.admin.CoreV1().Nodes(), shared.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	node := newNode(name, "zone-9")
	node.Status.Capacity[corev1.ResourcePods] = resource.MustParse("0")
	if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	renewed := metav1.NowMicro()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](1), RenewTime: &renewed}}
	if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// runningOn is a ready pod bound to the node, as its kubelet would have reported it.
func (k kubectl) runningOn(node, name, spec string) {
	k.t.Helper()
	k.apply(pod(name, "", `"nodeName":"`+node+`"`+spec, ""))
	k.run("patch", "pod", name, "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
}

func TestASilentNodeIsTaintedAndItsPodsLeaveAsTheyTolerate(t *testing.T) {
	k := use(t)
	node := k.namespace
	silentNode(t, node)
	unreachable := `,"tolerations":[{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute"`
	k.runningOn(node, "leaves", unreachable+`,"tolerationSeconds":1}]`)
	k.runningOn(node, "stays", unreachable+`}]`)
	k.get("Unknown NodeStatusUnknown Kubelet stopped posting node status.", "node/"+node, `{.status.conditions[?(@.type=="Ready")]['status','reason','message']}`)
	k.get("node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute", "node/"+node, `{range .spec.taints[*]}{.key}:{.effect} {end}`)
	k.get("False", "pod/stays", `{.status.conditions[?(@.type=="Ready")].status}`)
	k.get("DeletionByTaintManager", "pod/leaves", `{.status.conditions[?(@.type=="DisruptionTarget")].reason}`)
	k.get("30", "pod/leaves", "{.metadata.deletionGracePeriodSeconds}") // nobody is there to let it go
	k.get("", "pod/stays", "{.metadata.deletionTimestamp}")

	k.run("taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	k.shows("NotFound", "get", "pod", "leaves")

	k.run("patch", "lease", node, "-n", "kube-node-lease", "--type=merge", "-p", `{"spec":{"leaseDurationSeconds":3600,"renewTime":"`+time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")+`"}}`)
	k.get("True", "node/"+node, `{.status.conditions[?(@.type=="Ready")].status}`)
	k.get("node.kubernetes.io/out-of-service", "node/"+node, `{.spec.taints[*].key}`)
}

func TestPodsOfADeletedNodeAreCollected(t *testing.T) {
	k := use(t)
	silentNode(t, k.namespace)
	k.runningOn(k.namespace, "p", "")
	k.run("delete", "node", k.namespace)
	k.shows("NotFound", "get", "pod", "p")
}

func TestACordonedNodeIsTainted(t *testing.T) {
	k := use(t)
	silentNode(t, k.namespace)
	k.run("cordon", k.namespace)
	k.shows("node.kubernetes.io/unschedulable", "get", "node", k.namespace, "-o", "jsonpath={.spec.taints[*].key}")
}
