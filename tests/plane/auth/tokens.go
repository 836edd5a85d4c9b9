package auth

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Tokens authenticates bearer tokens. Fixed ones are secret; all others spell
// out who they are, since a test plane has nothing to protect:
//
//	sa:NAMESPACE:NAME                            a service account
//	sa:NAMESPACE:NAME:NODE                       the same, in a pod on that node
//	sa:NAMESPACE:NAME:NODE:NODE-UID:POD:POD-UID  the same with all that a token bound to a pod claims (KEP-4193); node and UID may be empty
//	node:NAME                                    a kubelet (system:node:NAME, group system:nodes)
//	user:NAME[:GROUP,...]                        anybody
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
	case kind == "sa" && slices.Contains([]int{2, 3, 6}, len(parts)):
		info := serviceaccount.ServiceAccountInfo{Namespace: parts[0], Name: parts[1]}
		if len(parts) > 2 {
			info.NodeName = parts[2]
		}
		if len(parts) > 3 {
			info.NodeUID, info.PodName, info.PodUID = parts[3], parts[4], parts[5]
		}
		return info.UserInfo()
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

// ServiceAccountToken is the token of a service account, in a pod if one is named.
func ServiceAccountToken(of *serviceaccount.ServiceAccountInfo) string {
	token := []string{"sa", of.Namespace, of.Name}
	if of.PodName != "" {
		token = append(token, of.NodeName, of.NodeUID, of.PodName, of.PodUID)
	}
	return strings.Join(token, ":")
}
