package apis

import (
	"cmp"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
)

// Priority and fairness reads these fields without asking whether they are set
// (pkg/apis/flowcontrol/v1/defaults.go of kube-apiserver).
func addFlowControlDefaults() {
	Scheme.AddTypeDefaultingFunc(&flowcontrolv1.FlowSchema{}, func(o any) {
		s := &o.(*flowcontrolv1.FlowSchema).Spec
		s.MatchingPrecedence = cmp.Or(s.MatchingPrecedence, 1000)
	})
	Scheme.AddTypeDefaultingFunc(&flowcontrolv1.PriorityLevelConfiguration{}, func(o any) {
		spec := &o.(*flowcontrolv1.PriorityLevelConfiguration).Spec
		if exempt := spec.Exempt; exempt != nil {
			def(&exempt.NominalConcurrencyShares, 0)
			def(&exempt.LendablePercent, 0)
		}
		if limited := spec.Limited; limited != nil {
			def(&limited.NominalConcurrencyShares, 30)
			def(&limited.LendablePercent, 0)
			if queuing := limited.LimitResponse.Queuing; queuing != nil {
				queuing.Queues = cmp.Or(queuing.Queues, 64)
				queuing.HandSize = cmp.Or(queuing.HandSize, 8)
				queuing.QueueLengthLimit = cmp.Or(queuing.QueueLengthLimit, 50)
			}
		}
	})
}
