package auth

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestARuleAllowsExactlyWhatItNames(t *testing.T) {
	rule := &rbacv1.PolicyRule{Verbs: []string{"get", "update"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, ResourceNames: []string{"p"}}
	ask := func(verb, resource, subresource, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Resource: resource, Subresource: subresource, Name: name, ResourceRequest: true}
	}
	for _, c := range []struct {
		name string
		a    authorizer.AttributesRecord
		want bool
	}{
		{"named", ask("get", "pods", "", "p"), true},
		{"subresource", ask("update", "pods", "status", "p"), true},
		{"another subresource", ask("get", "pods", "log", "p"), false},
		{"another name", ask("get", "pods", "", "q"), false},
		{"no name", ask("get", "pods", "", ""), false},
		{"another verb", ask("list", "pods", "", "p"), false},
		{"another resource", ask("get", "nodes", "", "p"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := allows(rule, c.a); got != c.want {
				t.Errorf("want %v, got %v", c.want, got)
			}
		})
	}
}

func TestWildcardsAndPaths(t *testing.T) {
	any := &rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*/scale"}}
	if !allows(any, authorizer.AttributesRecord{Verb: "get", APIGroup: "apps", Resource: "deployments", Subresource: "scale", ResourceRequest: true}) {
		t.Error("*/scale covers deployments/scale")
	}
	if allows(any, authorizer.AttributesRecord{Verb: "get", APIGroup: "apps", Resource: "deployments", ResourceRequest: true}) {
		t.Error("*/scale does not cover deployments")
	}
	p := paths("/apis", "/apis/*")
	for path, want := range map[string]bool{"/apis": true, "/apis/x": true, "/api": false} {
		if got := allows(&p, authorizer.AttributesRecord{Verb: "get", Path: path}); got != want {
			t.Errorf("%s: want %v, got %v", path, want, got)
		}
	}
}

func TestUnknownTokensAreNobody(t *testing.T) {
	tokens := Tokens{Fixed: map[string]user.Info{"secret": &user.DefaultInfo{Name: "admin"}}}
	for _, token := range []string{"", "secret2", "sa:", "sa:ns", "sa:ns:n:node:x", "sa:ns:n:node:uid:pod", "node:", "node:a:b", "user:", "other:x"} {
		if r, ok, err := tokens.AuthenticateToken(t.Context(), token); ok || err != nil {
			t.Errorf("%q is %v %v", token, r, err)
		}
	}
	if r, ok, _ := tokens.AuthenticateToken(t.Context(), "secret"); !ok || r.User.GetName() != "admin" {
		t.Errorf("fixed token: %v", r)
	}
}
