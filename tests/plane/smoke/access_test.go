package smoke

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestEveryIdentityButTheAdminNeedsARole(t *testing.T) {
	k := use(t)
	bot := "sa:" + k.namespace + ":bot"
	pods := shared.as(t, bot).CoreV1().Pods(k.namespace)
	if _, err := pods.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("want Forbidden, got %v", err)
	}
	k.run("create", "rolebinding", "v", "--clusterrole=view", "--serviceaccount="+k.namespace+":bot")
	eventually(t, "the bound role", func() bool {
		_, err := pods.List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	who := "--as=system:serviceaccount:" + k.namespace + ":bot"
	k.is("yes", "auth", "can-i", "list", "pods", who)
	contains(t, k.run("auth", "can-i", "delete", "pods", who), "no")
	contains(t, k.run("auth", "can-i", "--list", who), "configmaps")
}

func TestLabelledRolesAreAggregated(t *testing.T) {
	k := use(t)
	k.apply(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"` + k.namespace + `","labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true"}},
		"rules":[{"apiGroups":["` + k.namespace + `.dev"],"resources":["trains"],"verbs":["get"]}]}`)
	k.shows(k.namespace+".dev", "get", "clusterrole", "admin", "-o", "yaml") // view feeds edit, edit feeds admin
}

func TestTokensSpellOutWhoTheyAre(t *testing.T) {
	k := use(t)
	for token, want := range map[string]string{
		"node:n1":                       "system:node:n1 [system:nodes system:authenticated] map[]",
		"user:alice:dev,ops":            "alice [dev ops system:authenticated] map[]",
		"sa:" + k.namespace + ":bot:n1": "system:serviceaccount:" + k.namespace + ":bot [system:serviceaccounts system:serviceaccounts:" + k.namespace + " system:authenticated] map[authentication.kubernetes.io/node-name:[n1]]",
	} {
		review, err := shared.as(t, token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		u := review.Status.UserInfo
		if got := fmt.Sprint(u.Username, " ", u.Groups, " ", u.Extra); got != want {
			t.Errorf("token %s: want %s, got %s", token, want, got)
		}
	}
}

func TestATokenBoundToAPodNamesPodAndNode(t *testing.T) {
	k := use(t)
	k.apply(pod("p", "", "", ""))
	k.get("Running", "pod/p", "{.status.phase}")
	of := func(object, path string) string { return k.run("get", object, "-o", "jsonpath="+path) }
	node := of("pod/p", "{.spec.nodeName}")
	token := k.run("create", "token", "default", "--bound-object-kind=Pod", "--bound-object-name=p")
	review, err := shared.as(t, token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for claim, want := range map[string]string{
		"node-name": node,
		"node-uid":  of("node/"+node, "{.metadata.uid}"),
		"pod-name":  "p",
		"pod-uid":   of("pod/p", "{.metadata.uid}"),
	} {
		if got := review.Status.UserInfo.Extra["authentication.kubernetes.io/"+claim]; want == "" || !slices.Equal(got, authenticationv1.ExtraValue{want}) {
			t.Errorf("%s: want %q, got %q", claim, want, got)
		}
	}
	if got := len(review.Status.UserInfo.Extra); got != 4 {
		t.Errorf("other claims: %v", review.Status.UserInfo.Extra)
	}
}

func TestATokenReviewSaysWhoseATokenIs(t *testing.T) {
	admin := shared.as(t, "user:reviewer:system:masters").AuthenticationV1().TokenReviews()
	review := func(token string) authenticationv1.TokenReviewStatus {
		t.Helper()
		answer, err := admin.Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"api"}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status
	}
	good := review("sa:ns:name")
	if !good.Authenticated || good.User.Username != "system:serviceaccount:ns:name" || !slices.Equal(good.Audiences, []string{"api"}) {
		t.Errorf("%+v", good)
	}
	if bad := review("nobody"); bad.Authenticated || bad.Error == "" {
		t.Errorf("%+v", bad)
	}
	if _, err := shared.as(t, "nobody").CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a wrong token is not refused: %v", err)
	}
}

func TestTheAdminsCertificateIsEnoughWithoutTheToken(t *testing.T) {
	config := rest.CopyConfig(shared.config)
	config.BearerToken = ""
	who := func() (string, error) {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return "", err
		}
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return review.Status.UserInfo.Username, nil
	}
	if name, err := who(); name != "admin" || err != nil {
		t.Errorf("%q: %v", name, err)
	}
	config.CertData, config.KeyData = nil, nil
	if name, err := who(); err == nil {
		t.Errorf("nobody is %q", name)
	}
}

func TestQuotasRefuseAndAreGivenBack(t *testing.T) {
	k := use(t)
	k.apply(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"pods":"2","requests.nvidia.com/gpu":"3"}}}`)
	k.get("0", "quota/q", "{.status.used.pods}")
	gpu := `"resources":{"limits":{"nvidia.com/gpu":"2"}}`
	k.apply(pod("a", "", "", gpu))
	k.refuses(pod("b", "", "", gpu), "exceeded quota: q, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=3", "Forbidden")
	k.run("delete", "pod", "a")
	k.get("0/0", "quota/q", `{.status.used.pods}/{.status.used.requests\.nvidia\.com/gpu}`)
	k.apply(pod("b", "", "", gpu))
	k.apply(pod("c", "", "", ""))
	k.refuses(pod("d", "", "", ""), "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2")
}

func TestPodSecurityIsEnforcedWhereANamespaceAsksForIt(t *testing.T) {
	k := use(t)
	k.run("label", "ns", k.namespace, "pod-security.kubernetes.io/enforce=baseline")
	eventually(t, "the label to count", func() bool {
		out := k.stdin(pod("h", "", `"hostNetwork":true`, ""), "create", "--dry-run=server", "-f", "-")
		return strings.Contains(out, `violates PodSecurity "baseline:latest": host namespaces`)
	})
	k.run("label", "ns", k.namespace, "--overwrite", "pod-security.kubernetes.io/enforce=restricted")
	eventually(t, "the stricter label to count", func() bool {
		out := k.stdin(pod("p", "", "", ""), "create", "--dry-run=server", "-f", "-")
		return strings.Contains(out, "allowPrivilegeEscalation != false")
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("waited in vain for %s", what)
}
