package smoke

import (
	"strings"
	"testing"
)

func TestAnUnboundPodVanishesWhenDeleted(t *testing.T) {
	k := use(t)
	k.apply(pod("u", "", `"schedulerName":"nobody"`, ""))
	k.run("delete", "pod", "u", "--wait=false")
	k.shows("NotFound", "get", "pod", "u")
}

func TestABoundPodIsDeletedGracefullyByItsKubelet(t *testing.T) {
	k := use(t)
	k.apply(pod("g", `"finalizers":["demo.dev/hold"]`, `"terminationGracePeriodSeconds":5`, ""))
	k.get("Running", "pod/g", "{.status.phase}")
	k.run("delete", "pod", "g", "--wait=false")
	k.get("0", "pod/g", "{.metadata.deletionGracePeriodSeconds}")
	k.run("patch", "pod", "g", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	k.is("", "get", "pod", "g", "--ignore-not-found")
}

func TestAGatedPodWaitsAndMayOnlyLoseGates(t *testing.T) {
	k := use(t)
	k.apply(pod("gt", "", `"schedulingGates":[{"name":"demo.dev/g"}]`, ""))
	k.get("SchedulingGated", "pod/gt", "{.status.conditions[0].reason}")
	bind := `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"gt"},"target":{"kind":"Node","name":"node-0"}}`
	path := "/api/v1/namespaces/" + k.namespace + "/pods/gt/binding"
	contains(t, k.stdin(bind, "create", "--raw", path, "-f", "-"), "schedulingGates")
	contains(t, k.run("patch", "pod", "gt", "--type=json", "-p", `[{"op":"add","path":"/spec/schedulingGates/-","value":{"name":"demo.dev/h"}}]`),
		"spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'demo.dev/h'")
	k.run("patch", "pod", "gt", "--type=merge", "-p", `{"spec":{"nodeSelector":{"topology.kubernetes.io/zone":"zone-1"}}}`)
	k.run("patch", "pod", "gt", "--type=json", "-p", `[{"op":"remove","path":"/spec/schedulingGates"}]`)
	k.get("Running", "pod/gt", "{.status.phase}")
	contains(t, "node-1 node-3", k.run("get", "pod", "gt", "-o", "jsonpath={.spec.nodeName}"))
	contains(t, k.stdin(bind, "create", "--raw", path, "-f", "-"), "already assigned")
	contains(t, k.run("patch", "pod", "gt", "-p", `{"spec":{"restartPolicy":"Never"}}`), "pod updates may not change fields")
}

func TestInvalidPodsAreRefusedInUpstreamsWords(t *testing.T) {
	k := use(t)
	k.refuses(pod("UPPER", "", "", ""), "metadata.name: Invalid value")
	k.refuses(pod("a", "", "", `"resources":{"limits":{"nvidia.com/gpu":"1"},"requests":{"nvidia.com/gpu":"2"}}`), "must be equal to nvidia.com/gpu limit of 1")
	k.refuses(pod("a", "", "", `"resources":{"limits":{"cpu":"1"},"requests":{"cpu":"2"}}`), "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1")
	k.refuses(pod("a", "", "", `"restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[1]}}]`),
		"spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used")
	contains(t, k.stdin(pod("a", "", `"bogus":1`, ""), "apply", "--server-side", "-f", "-"), "field not declared in schema")
}

func TestRestartRulesAreKept(t *testing.T) {
	k := use(t)
	k.apply(pod("r", "", `"restartPolicy":"Never"`, `"restartPolicy":"Never","restartPolicyRules":[{"action":"RestartAllContainers","exitCodes":{"operator":"NotIn","values":[0]}}]`))
	k.get("RestartAllContainers", "pod/r", "{.spec.containers[0].restartPolicyRules[0].action}")
	k.get("Running", "pod/r", "{.status.phase}")
}

func TestPriorityComesFromTheClass(t *testing.T) {
	k := use(t)
	k.refuses(pod("p", "", `"priorityClassName":"nope"`, ""), "no PriorityClass with name nope was found")
	class := k.namespace + "-high"
	k.run("create", "priorityclass", class, "--value=1000")
	k.apply(pod("p", "", `"priorityClassName":"`+class+`"`, ""))
	k.get("1000/PreemptLowerPriority", "pod/p", "{.spec.priority}/{.spec.preemptionPolicy}")
}

func TestAPodNeedsItsServiceAccount(t *testing.T) {
	k := use(t)
	k.refuses(pod("p", "", `"serviceAccountName":"nobody"`, ""), "error looking up service account "+k.namespace+`/nobody: serviceaccounts "nobody" not found`, "Forbidden")
	k.run("create", "serviceaccount", "nobody")
	k.apply(pod("p", "", `"serviceAccountName":"nobody"`, ""))
}

func TestEvictionAsksTheDisruptionBudget(t *testing.T) {
	k := use(t)
	k.apply(pod("e", `"labels":{"app":"pdb"}`, "", ""))
	k.get("Running", "pod/e", "{.status.phase}")
	k.apply(`{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"b"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"pdb"}}}}`)
	k.get("1/0", "pdb/b", "{.status.currentHealthy}/{.status.disruptionsAllowed}")
	eviction := `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"e","namespace":"` + k.namespace + `"}}`
	path := "/api/v1/namespaces/" + k.namespace + "/pods/e/eviction"
	contains(t, k.stdin(eviction, "create", "--raw", path, "-f", "-"), "disruption budget")
	k.run("patch", "pdb", "b", "--type=merge", "-p", `{"spec":{"minAvailable":0}}`)
	k.get("1", "pdb/b", "{.status.disruptionsAllowed}")
	k.stdin(eviction, "create", "--raw", path, "-f", "-")
	k.is("", "get", "pod", "e", "--ignore-not-found")
}

func TestANominationMayBeSetThroughStatus(t *testing.T) {
	k := use(t)
	k.apply(pod("n", "", `"schedulingGates":[{"name":"demo.dev/g"}]`, ""))
	k.run("patch", "pod", "n", "--subresource=status", "--type=merge", "-p", `{"status":{"nominatedNodeName":"node-2"}}`)
	k.get("node-2", "pod/n", "{.status.nominatedNodeName}")
	k.run("patch", "pod", "n", "--type=json", "-p", `[{"op":"remove","path":"/spec/schedulingGates"}]`)
	k.get("node-2/", "pod/n", "{.spec.nodeName}/{.status.nominatedNodeName}")
}

func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("want %q in %q", part, text)
	}
}
