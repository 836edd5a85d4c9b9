package smoke

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"lockstep/tests/plane/audit"
)

// writes are the audited writes to a namespace so far.
func writes(t *testing.T, namespace string) []audit.Entry {
	t.Helper()
	file, err := os.Open(filepath.Join(shared.dir, "writes"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []audit.Entry
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var e audit.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		if e.Namespace == namespace {
			out = append(out, e)
		}
	}
	return out
}

// last is the last audited write of the admin or of the named user.
func last(t *testing.T, namespace, user string) audit.Entry {
	t.Helper()
	var e audit.Entry
	for _, w := range writes(t, namespace) {
		if w.User == user {
			e = w
		}
	}
	return e
}

func TestEachWriteIsLoggedBeforeItIsAnswered(t *testing.T) {
	k := use(t)
	ctx, pods := t.Context(), shared.admin.CoreV1().Pods(k.namespace)
	one := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "c", Image: "b:1"}}}}
	made, err := pods.Create(ctx, one, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(verb, subresource string, code int, before, after string) {
		t.Helper()
		e := last(t, k.namespace, "admin")
		if e.Verb != verb || e.Resource != "pods" || e.Subresource != subresource || e.Name != "p" || e.UID != string(made.UID) ||
			e.Code != code || e.ResourceVersionBefore != before || e.ResourceVersionAfter != after {
			t.Errorf("want %s %s %d %s->%s of %s, got %+v", verb, subresource, code, before, after, made.UID, e)
		}
	}
	check("create", "", 201, "", made.ResourceVersion)

	patched, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("patch", "", 200, made.ResourceVersion, patched.ResourceVersion)
	if e := last(t, k.namespace, "admin"); e.ContentType != string(types.MergePatchType) {
		t.Errorf("content type %q", e.ContentType)
	}

	if _, err := pods.Update(ctx, made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Fatalf("want a conflict, got %v", err)
	}
	check("update", "", 409, patched.ResourceVersion, "")

	status, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"status":{"message":"x"}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	check("patch", "status", 200, patched.ResourceVersion, status.ResourceVersion)

	if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "nowhere"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound, err := pods.Get(ctx, "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("create", "binding", 201, status.ResourceVersion, bound.ResourceVersion)

	if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}}); err != nil {
		t.Fatal(err)
	}
	check("create", "eviction", 201, bound.ResourceVersion, "")
}

func TestDryRunsAndRefusalsAreLogged(t *testing.T) {
	k := use(t)
	k.get("default", "serviceaccount/default", "{.metadata.name}")
	k.stdin(pod("d", "", "", ""), "create", "--dry-run=server", "-f", "-")
	if e := last(t, k.namespace, "admin"); !e.DryRun || e.Code != 201 {
		t.Errorf("dry run: %+v", e)
	}
	if err := shared.admin.CoreV1().ServiceAccounts(k.namespace).Delete(t.Context(), "default", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if e := last(t, k.namespace, "admin"); !e.DryRun || e.Verb != "delete" {
		t.Errorf("dry run of a delete: %+v", e)
	}
	_, err := shared.as(t, "user:eve").CoreV1().ConfigMaps(k.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Fatalf("want Forbidden, got %v", err)
	}
	if e := last(t, k.namespace, "eve"); e.Code != 403 || e.Reason != "Forbidden" || e.Resource != "configmaps" || e.Verb != "create" {
		t.Errorf("refusal: %+v", e)
	}
}

func TestAnImpersonatedWriteIsLoggedAsOfWhoIsImpersonated(t *testing.T) {
	k := use(t)
	k.run("create", "configmap", "theirs", "--as=mallory")
	if e := last(t, k.namespace, "mallory"); e.Verb != "create" || e.Resource != "configmaps" || e.Code != 403 {
		t.Errorf("impersonated: %+v", e)
	}
	if e := last(t, k.namespace, "admin"); e.Verb != "" {
		t.Errorf("of the impersonator: %+v", e)
	}
}

func TestEachKindOfReadIsLoggedOnce(t *testing.T) {
	k := use(t)
	name := "user:" + k.namespace
	for range 3 {
		_, _ = shared.as(t, name).CoreV1().Pods(k.namespace).List(t.Context(), metav1.ListOptions{})
	}
	data, err := os.ReadFile(filepath.Join(shared.dir, "reads"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"user":"` + k.namespace + `","verb":"list","apiGroup":"","resource":"pods","hasName":false,"namespaced":true,"allowed":false}`
	if n := strings.Count(string(data), want); n != 1 {
		t.Errorf("%d lines %s", n, want)
	}
}
