package binder

import (
	"slices"
	"strings"
)

// SwitchesName is the ConfigMap in kube-system whose data are Switches.
const SwitchesName = "plane-binder"

// Switches make the binder misbehave as a scheduler may. Keys of the ConfigMap:
//
//	refuse: "node-1,node-2"     no pod pinned to these nodes is bound there
//	refuse-namespace: "team-a"  only pods of this namespace are refused
//	preempt: "true"             evict lower-priority pods for a pod that does not fit
type Switches struct {
	refuse          []string
	refuseNamespace string
	preempt         bool
}

func readSwitches(data map[string]string) *Switches {
	s := &Switches{refuseNamespace: data["refuse-namespace"], preempt: data["preempt"] == "true"}
	for name := range strings.SplitSeq(data["refuse"], ",") {
		if name = strings.TrimSpace(name); name != "" {
			s.refuse = append(s.refuse, name)
		}
	}
	return s
}

func (s *Switches) refuses(namespace, node string) bool {
	return slices.Contains(s.refuse, node) && (s.refuseNamespace == "" || s.refuseNamespace == namespace)
}
