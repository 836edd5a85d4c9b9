package auth

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// NodeNameKey is the key in a user's extra that a pod-bound token carries (KEP-4193).
const NodeNameKey = serviceaccount.NodeNameKey

// Tokens authenticates bearer tokens. Fixed ones are secret; all others spell
// out who they are, since a test plane has nothing to protect:
//
//	sa:NAMESPACE:NAME          a service account
//	sa:NAMESPACE:NAME:NODE     the same, in a pod on that node
//	node:NAME                  a kubelet (system:node:NAME, group system:nodes)
//	user:NAME[:GROUP,...]      anybody
type Tokens struct {
	// Fixed maps secret tokens to their users.
	Fixed map[string]user.Info
}

// AuthenticateToken implements authenticator.Token.
func (t Tokens) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if u, ok := t.Fixed[token]; ok {
		return &authenticator.Response{User: u}, true, nil
	}
	if u := spelled(token); u != nil {
		return &authenticator.Response{User: u}, true, nil
	}
	return nil, false, nil
}

func spelled(token string) user.Info {
	kind, rest, _ := strings.Cut(token, ":")
	parts := strings.Split(rest, ":")
	if parts[0] == "" {
		return nil
	}
	switch {
	case kind == "sa" && (len(parts) == 2 || len(parts) == 3):
		u := &user.DefaultInfo{
			Name:   serviceaccount.MakeUsername(parts[0], parts[1]),
			Groups: serviceaccount.MakeGroupNames(parts[0]),
		}
		if len(parts) == 3 {
			u.Extra = map[string][]string{NodeNameKey: {parts[2]}}
		}
		return u
	case kind == "node" && len(parts) == 1:
		return &user.DefaultInfo{Name: "system:node:" + parts[0], Groups: []string{user.NodesGroup}}
	case kind == "user":
		// Names of groups have colons of their own: system:nodes.
		name, groups, grouped := strings.Cut(rest, ":")
		u := &user.DefaultInfo{Name: name}
		if grouped {
			u.Groups = strings.Split(groups, ",")
		}
		return u
	}
	return nil
}

// ServiceAccountToken is the token of a service account, in a pod on the node if one is named.
func ServiceAccountToken(namespace, name, node string) string {
	token := "sa:" + namespace + ":" + name
	if node != "" {
		token += ":" + node
	}
	return token
}
