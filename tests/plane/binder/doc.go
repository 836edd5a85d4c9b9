// Package binder stands in for kube-scheduler: one pod at a time, by priority
// and then age, it filters nodes, picks the emptiest and binds. It honours gates,
// node selectors and affinity (pins by metadata.name included), taints, requests,
// declared node features and nominations (KEP-5278); it knows no pod affinity,
// no topology spread and no gangs.
//
// The ConfigMap kube-system/plane-binder switches it live, see Switches.
package binder
