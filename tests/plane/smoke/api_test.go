package smoke

import (
	"strings"
	"testing"
)

func TestServerSideApplyPatchesAndDryRun(t *testing.T) {
	k := use(t)
	k.stdin(pod("s", "", "", ""), "apply", "--server-side", "--field-manager=a", "-f", "-")
	other := strings.ReplaceAll(pod("s", "", "", ""), "b:1", "b:2")
	contains(t, k.stdin(other, "apply", "--server-side", "--field-manager=b", "-f", "-"), `conflict with "a"`)
	contains(t, k.stdin(pod("d", "", "", ""), "apply", "--dry-run=server", "-f", "-"), "created (server dry run)")
	k.shows("NotFound", "get", "pod", "d")
	k.run("create", "deployment", "d", "--image=n:1")
	k.run("patch", "deploy", "d", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"x","image":"y"}]}}}}`)
	k.get("x n/2", "deploy/d", "{.spec.template.spec.containers[*].name}/{.metadata.generation}")
}

// crd is a definition in a group of the test's own.
func crd(group string) string {
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trains.` + group + `}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {plural: trains, singular: train, kind: Train}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    selectableFields: [{jsonPath: .spec.queue}]
    additionalPrinterColumns: [{name: Queue, type: string, jsonPath: .spec.queue}]
    schema:
      openAPIV3Schema:
        type: object
        description: A train.
        properties:
          spec:
            type: object
            properties: {size: {type: integer, description: Its length.}, max: {type: integer, default: 8}, queue: {type: string}}
            x-kubernetes-validations: [{rule: "self.size <= self.max", message: size over max}, {rule: "self.size >= oldSelf.size", message: no shrinking}]
          status: {type: object, properties: {phase: {type: string}}}
`
}

func (k kubectl) defineTrains() (group string) {
	k.t.Helper()
	group = k.namespace + ".dev"
	k.apply(crd(group))
	k.shows("condition met", "wait", "--for=condition=Established", "crd/trains."+group)
	k.shows("created", "create", "--dry-run=server", "-f", k.file(train(group, "probe", "1")))
	k.t.Cleanup(func() { k.run("delete", "crd", "trains."+group, "--wait=false") })
	return group
}

func train(group, name, size string) string {
	return `{"apiVersion":"` + group + `/v1","kind":"Train","metadata":{"name":"` + name + `"},"spec":{"size":` + size + `,"queue":"gold"},"status":{"phase":"x"}}`
}

func TestCustomResourcesHaveDefaultsRulesColumnsAndExplanations(t *testing.T) {
	k := use(t)
	group := k.defineTrains()
	trains := "trains." + group
	k.apply(train(group, "t", "3"))
	k.get("8/", trains+"/t", "{.spec.max}/{.status}")
	k.refuses(train(group, "u", "30"), "size over max")
	contains(t, k.run("patch", trains, "t", "--type=merge", "-p", `{"spec":{"size":1}}`), "no shrinking")
	contains(t, k.run("get", trains, "--field-selector", "spec.queue=gold", "-o", "name"), "/t")
	contains(t, k.run("get", trains), "QUEUE")
	k.run("patch", trains, "t", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Go"}}`)
	k.get("Go", trains+"/t", "{.status.phase}")
	k.shows("Its length.", "explain", trains+".spec.size")
	contains(t, k.run("wait", "--for=jsonpath={.status.phase}=Go", trains+"/t", "--timeout=5s"), "condition met")
}

func TestGarbageCollectionFollowsCustomOwners(t *testing.T) {
	k := use(t)
	group := k.defineTrains()
	trains := "trains." + group
	owned := func(name, owner string) string {
		uid := k.run("get", trains, owner, "-o", "jsonpath={.metadata.uid}")
		return pod(name, `"ownerReferences":[{"apiVersion":"`+group+`/v1","kind":"Train","name":"`+owner+`","uid":"`+uid+`","blockOwnerDeletion":true}]`, "", "")
	}
	for _, name := range []string{"fore", "orphan", "back"} {
		k.apply(train(group, name, "1"))
		k.apply(owned(name+"-pod", name))
	}
	k.run("delete", trains, "fore", "--cascade=foreground", "--timeout=15s")
	k.shows("NotFound", "get", "pod", "fore-pod")
	k.run("delete", trains, "orphan", "--cascade=orphan", "--timeout=15s")
	k.get("orphan-pod", "pod/orphan-pod", "{.metadata.name}{.metadata.ownerReferences}")
	k.run("delete", trains, "back")
	k.shows("NotFound", "get", "pod", "back-pod")
}

func TestAValidatingAdmissionPolicyRefuses(t *testing.T) {
	k := use(t)
	k.apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: ` + k.namespace + `}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'forbidden-` + k.namespace + `'", message: "that name is taboo"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: ` + k.namespace + `}
spec: {policyName: ` + k.namespace + `, validationActions: [Deny]}
`)
	k.shows("taboo", "create", "cm", "forbidden-"+k.namespace, "--dry-run=server")
}

func TestNativeSchedulingObjectsAreServed(t *testing.T) {
	k := use(t)
	k.stdin(`{"apiVersion":"scheduling.k8s.io/v1beta1","kind":"PodGroup","metadata":{"name":"pg"},"spec":{"schedulingPolicy":{"gang":{"minCount":2}}}}`, "apply", "--server-side", "-f", "-")
	k.get(`0/{"single":{}}`, "podgroup/pg", "{.spec.priority}/{.spec.disruptionMode}")
	k.stdin(pod("in", "", `"schedulingGroup":{"podGroupName":"pg"}`, ""), "create", "--validate=false", "-f", "-")
	k.get("pg", "pod/in", "{.spec.schedulingGroup.podGroupName}")
}

func TestEventsAreOneRegistryUnderTwoGroups(t *testing.T) {
	k := use(t)
	k.apply(`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e1","namespace":"` + k.namespace + `"},"eventTime":"2026-01-01T00:00:00.000000Z",
		"regarding":{"kind":"Pod","name":"x","namespace":"` + k.namespace + `"},"reason":"Hello","action":"Test","note":"hi there","type":"Normal","reportingController":"demo.dev/x","reportingInstance":"x-1"}`)
	k.shows("hi there", "get", "events", "--field-selector", "involvedObject.name=x,reason=Hello")
}

func TestADeletedNamespaceIsEmptiedAndTakesNothingMore(t *testing.T) {
	k := use(t)
	k.apply(pod("n", "", "", ""))
	k.run("create", "cm", "x")
	contains(t, k.run("delete", "ns", k.namespace, "--timeout=20s"), "deleted")
	k.shows("NotFound", "get", "ns", k.namespace)
	contains(t, k.run("create", "cm", "x"), "not found")
}

func TestKubectlExplainsDescribesAndPrints(t *testing.T) {
	k := use(t)
	k.apply(pod("p", "", "", ""))
	k.get("Running", "pod/p", "{.status.phase}")
	contains(t, k.run("explain", "pod.spec.schedulingGates"), "schedulingGates")
	k.shows("Successfully assigned "+k.namespace+"/p to node-", "describe", "pod", "p")
	contains(t, k.run("get", "pod", "p", "-o", "wide"), "NOMINATED NODE")
	contains(t, k.run("get", "nodes"), "Ready")
	contains(t, k.run("logs", "p"), "not implemented")
	contains(t, k.run("version"), "v1.37.2+plane")
	contains(t, k.run("get", "svc", "kubernetes", "-n", "default"), "10.96.0.1")
}
