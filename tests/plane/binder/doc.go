// Package binder stands in for kube-scheduler: one pod at a time, by priority
// and then age, it filters nodes, picks the emptiest and binds. It says no where
// kube-scheduler's filters do, in their words (see filters), honours gates and
// nominations (KEP-5278), and preempts pod by pod if told to; it knows no gangs.
// What else it leaves out is in the module's README.
//
// The ConfigMap kube-system/plane-binder switches it live, see Switches.
package binder
