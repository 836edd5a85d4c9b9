package smoke

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheBinderPreemptsOnlyWhenToldTo(t *testing.T) {
	k := use(t)
	node := ownNode(k.namespace)
	if _, err := shared.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.run("delete", "node", k.namespace) })
	class := k.namespace
	k.run("create", "priorityclass", class, "--value=500")
	t.Cleanup(func() { k.run("delete", "priorityclass", class) })
	selector := k.on()
	gpus := func(n string) string { return `"resources":{"limits":{"nvidia.com/gpu":"` + n + `"}}` }
	k.apply(pod("low-1", "", selector, gpus("4")))
	k.apply(pod("low-2", "", selector, gpus("4")))
	k.get(k.namespace, "pod/low-1", "{.spec.nodeName}")
	k.get(k.namespace, "pod/low-2", "{.spec.nodeName}")
	k.apply(pod("high", "", selector+`,"priorityClassName":"`+class+`"`, gpus("4")))
	k.get("Unschedulable", "pod/high", `{.status.conditions[?(@.type=="PodScheduled")].reason}`)
	k.get("", "pod/high", "{.status.nominatedNodeName}")

	// A preemption of its own takes one victim, and the room is held meanwhile.
	k.switches(map[string]string{"preempt": "true"})
	k.get(k.namespace, "pod/high", "{.status.nominatedNodeName}")
	victims := k.run("get", "pods", "-o", `jsonpath={range .items[?(@.metadata.deletionTimestamp)]}{.metadata.name} {.status.conditions[?(@.type=="DisruptionTarget")].reason}{end}`)
	contains(t, victims, "PreemptionByScheduler")
	k.shows("Preempted", "get", "events", "--field-selector", "reason=Preempted")
	k.apply(pod("thief", "", selector, gpus("4")))
	k.run("delete", "pod", "--force", "--grace-period=0", "low-1", "low-2", "--ignore-not-found")
	k.get(k.namespace, "pod/high", "{.spec.nodeName}")
}
