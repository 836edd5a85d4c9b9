package smoke

import (
	"fmt"
	"net/http"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestRequestsGoToTheLevelOfTheirFlowSchema(t *testing.T) {
	k := use(t)
	k.apply(fmt.Sprintf(`{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":%q},"spec":{
		"matchingPrecedence":300,"priorityLevelConfiguration":{"name":"leader-election"},"rules":[{
			"subjects":[{"kind":"ServiceAccount","serviceAccount":{"namespace":%q,"name":"leader"}}],
			"resourceRules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["*"],"namespaces":["*"]}]}]}}`, k.namespace, k.namespace))
	t.Cleanup(func() { k.run("delete", "flowschema", k.namespace) })
	leases, pods := "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "/api/v1/namespaces/"+k.namespace+"/pods"
	for _, request := range []struct{ token, path, level string }{
		{"sa:" + k.namespace + ":leader", leases, "leader-election"},
		{"sa:" + k.namespace + ":leader", pods, "workload-low"},
		{"node:n1", leases, "node-high"},
		{"node:n1", pods, "system"},
		{"user:alice", pods, "global-default"},
	} {
		eventually(t, request.token+" in the level "+request.level, func() bool {
			return k.levelOf(request.token, request.path) == request.level
		})
	}
}

func TestAPriorityLevelThatSaysLittleIsFilledIn(t *testing.T) {
	k := use(t)
	k.apply(fmt.Sprintf(`{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"PriorityLevelConfiguration","metadata":{"name":%q},
		"spec":{"type":"Limited","limited":{"limitResponse":{"type":"Queue","queuing":{}}}}}`, k.namespace))
	t.Cleanup(func() { k.run("delete", "prioritylevelconfiguration", k.namespace) })
	k.get("30 64 8 50", "prioritylevelconfiguration/"+k.namespace,
		"{.spec.limited.nominalConcurrencyShares} {.spec.limited.limitResponse.queuing.queues} {.spec.limited.limitResponse.queuing.handSize} {.spec.limited.limitResponse.queuing.queueLengthLimit}")
}

// levelOf is the priority level of a read, whether it is allowed or not.
func (k kubectl) levelOf(token, path string) string {
	k.t.Helper()
	config := rest.CopyConfig(shared.config)
	config.BearerToken = token
	transport, err := rest.TransportFor(config)
	if err != nil {
		k.t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: transport}).Get(config.Host + path)
	if err != nil {
		k.t.Fatal(err)
	}
	defer answer.Body.Close()
	levels, err := shared.admin.FlowcontrolV1().PriorityLevelConfigurations().List(k.t.Context(), metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	for _, level := range levels.Items {
		if string(level.UID) == answer.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID) {
			return level.Name
		}
	}
	return ""
}
