package smoke

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep/tests/plane/binder"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pinned is a pod that may only go to one node.
func pinned(name, node, more string) string {
	return pod(name, "", `"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["`+node+`"]}]}]}}}`+more, "")
}

// switching is held while a test has the binder's switches set: there is one binder.
var switching sync.Mutex

// switches sets the binder's switches; the function that it returns takes them back.
func (k kubectl) switches(data map[string]string) (release func()) {
	k.t.Helper()
	switching.Lock()
	configs := shared.admin.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	_, err := configs.Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: binder.SwitchesName}, Data: data}, metav1.CreateOptions{})
	if err != nil {
		k.t.Error(err)
	}
	release = sync.OnceFunc(func() {
		_ = configs.Delete(context.Background(), binder.SwitchesName, metav1.DeleteOptions{})
		switching.Unlock()
	})
	k.t.Cleanup(release)
	return release
}

func TestAPodThatFitsNowhereSaysWhy(t *testing.T) {
	k := use(t)
	k.apply(pod("big", "", "", `"resources":{"limits":{"nvidia.com/gpu":"9"}}`))
	k.get("Unschedulable", "pod/big", `{.status.conditions[?(@.type=="PodScheduled")].reason}`)
	k.shows("Insufficient nvidia.com/gpu", "get", "pod", "big", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
	k.shows("Insufficient nvidia.com/gpu", "get", "events", "--field-selector", "reason=FailedScheduling,involvedObject.name=big")
}

func TestAPinnedPodGoesToItsNodeUnlessThatIsRefused(t *testing.T) {
	k := use(t)
	release := k.switches(map[string]string{"refuse": "node-3", "refuse-namespace": k.namespace})
	k.apply(pinned("there", "node-2", ""))
	k.get("node-2", "pod/there", "{.spec.nodeName}")
	k.apply(pinned("nowhere", "node-3", ""))
	k.shows("didn't match PersistentVolume's node affinity", "get", "pod", "nowhere", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
	release()
	k.get("node-3", "pod/nowhere", "{.spec.nodeName}")
}

// claim makes a claim of a class of the test's own, which nobody binds.
func (k kubectl) claim() {
	k.t.Helper()
	k.apply(`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data"},
		"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"` + k.namespace + `","resources":{"requests":{"storage":"1Gi"}}}}`)
}

const claimsData = `"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"data"}}]`

func TestAPodWaitsForItsClaimAndThenForANodeThatReachesTheVolume(t *testing.T) {
	k := use(t)
	message := []string{"get", "pod", "trainer", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`}
	k.apply(pod("trainer", "", claimsData, ""))
	k.shows(`persistentvolumeclaim "data" not found. not found`, message...)
	k.claim()
	k.shows("pod has unbound immediate PersistentVolumeClaims. not found", message...)
	k.apply(`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"` + k.namespace + `"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/v"},
		"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"` + k.namespace + `","operator":"Exists"}]}]}}}}`)
	k.run("patch", "pvc", "data", "-p", `{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes"}},"spec":{"volumeName":"`+k.namespace+`"}}`)
	k.shows("node(s) didn't match PersistentVolume's node affinity", message...)
	k.run("label", "node", "node-2", k.namespace+"=")
	k.get("node-2", "pod/trainer", "{.spec.nodeName}")
}

func TestAPodThatWaitsForAClassThatBindsLateIsBound(t *testing.T) {
	k := use(t)
	k.apply(pod("trainer", "", claimsData, ""))
	k.claim()
	k.shows("pod has unbound immediate PersistentVolumeClaims", "get", "pod", "trainer", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
	k.apply(`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"` + k.namespace + `"},"provisioner":"example.com/none","volumeBindingMode":"WaitForFirstConsumer"}`)
	k.shows("node-", "get", "pod", "trainer", "-o", "jsonpath={.spec.nodeName}")
}

func TestARestartAllPodNeedsANodeThatDeclaresTheFeature(t *testing.T) {
	k := use(t)
	node := ownNode(k.namespace)
	node.Status.DeclaredFeatures = nil
	if _, err := shared.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.run("delete", "node", k.namespace) })
	rules := `"restartPolicy":"Never","restartPolicyRules":[{"action":"RestartAllContainers","exitCodes":{"operator":"In","values":[1]}}]`
	k.apply(pod("r", "", k.on(), rules))
	k.shows("didn't match Pod's required features", "get", "pod", "r", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
}

func TestThePlaneEndsFastAndWithItsParent(t *testing.T) {
	t.Parallel()
	p, err := startPlane(shared.bin, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	if err := p.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.process.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	t.Logf("ended %s after SIGTERM", time.Since(asked))

	// A shell starts the plane and is killed: the plane's output ends when it does.
	shell := exec.Command("sh", "-c", `"$0" --dir "$1" --exit-with-parent & wait`, filepath.Join(shared.bin, "plane"), filepath.Join(t.TempDir(), "data"))
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdout = write
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || !readyLine.MatchString(line) {
		t.Fatalf("%q %v", line, err)
	}
	_ = shell.Process.Kill()
	_ = shell.Wait()
	ended := make(chan error, 1)
	go func() {
		_, err := lines.ReadString('\n')
		ended <- err
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the plane outlives its parent")
	}
}
